from typing import Any

from django.db import migrations, models


def compare_byte_by_byte(apps: Any, schema_editor: Any) -> None:
    """As the migration before did for the tables that were there then."""
    connection = schema_editor.connection
    if connection.vendor != "mysql" or not connection.mysql_is_mariadb:
        return
    for name in ("ResourceFloor", "TokenMark"):
        table = schema_editor.quote_name(apps.get_model("fencing", name)._meta.db_table)
        schema_editor.execute(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin")


class Migration(migrations.Migration):

    dependencies = [
        ('fencing', '0004_ascending_indexes'),
    ]

    operations = [
        migrations.CreateModel(
            name='ResourceFloor',
            fields=[
                ('namespace', models.CharField(max_length=100, primary_key=True, serialize=False, verbose_name='namespace')),
                ('token', models.BigIntegerField(verbose_name='floor')),
            ],
            options={
                'verbose_name': 'floor of resources',
                'verbose_name_plural': 'floors of resources',
            },
        ),
        migrations.CreateModel(
            name='TokenMark',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('namespace', models.CharField(max_length=100, verbose_name='namespace')),
                ('token', models.BigIntegerField(verbose_name='token')),
                ('at', models.DateTimeField(verbose_name='time')),
            ],
            options={
                'verbose_name': 'mark',
                'verbose_name_plural': 'marks',
                'indexes': [models.Index(fields=['namespace', 'at'], name='fencing_mark_time')],
            },
        ),
        migrations.RunPython(compare_byte_by_byte, migrations.RunPython.noop, atomic=False),
    ]
