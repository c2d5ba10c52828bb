from typing import Any

from django.db import migrations


def compare_byte_by_byte(apps: Any, schema_editor: Any) -> None:
    """MariaDB's usual collations hold "A" and "a", or "a" and "a ", for the same name; PostgreSQL and SQLite do not."""
    connection = schema_editor.connection
    if connection.vendor != "mysql" or not connection.mysql_is_mariadb:
        return
    for model in apps.get_app_config("fencing").get_models():
        table = schema_editor.quote_name(model._meta.db_table)
        # Of the table, so that columns which are added or altered later get it, too.
        schema_editor.execute(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin")


class Migration(migrations.Migration):

    # MariaDB takes no ALTER TABLE back; to convert a table a second time does nothing.
    atomic = False

    dependencies = [
        ("fencing", "0002_stored_leases"),
    ]

    operations = [
        migrations.RunPython(compare_byte_by_byte, migrations.RunPython.noop),
    ]
