from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fencing', '0003_binary_names'),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name='fencedwrite',
            name='fencing_write_resource',
        ),
        migrations.RemoveIndex(
            model_name='fencedwrite',
            name='fencing_write_time',
        ),
        migrations.RemoveIndex(
            model_name='fencedwrite',
            name='fencing_write_refused',
        ),
        migrations.AddIndex(
            model_name='fencedwrite',
            index=models.Index(fields=['resource', 'id'], name='fencing_write_resource'),
        ),
        migrations.AddIndex(
            model_name='fencedwrite',
            index=models.Index(fields=['at', 'id'], name='fencing_write_time'),
        ),
        migrations.AddIndex(
            model_name='fencedwrite',
            index=models.Index(condition=models.Q(('outcome__in', ('accepted', 'unfenced')), _negated=True), fields=['at', 'id'], name='fencing_write_refused'),
        ),
    ]
