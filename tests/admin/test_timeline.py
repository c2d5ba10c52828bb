"""The timeline of a resource: every grant and write on one page, drawn and as a table."""

from __future__ import annotations

import pytest

from fencing.admin.links import timeline_url

pytestmark = pytest.mark.django_db

ODD = 'lager:/{Größe} "4"\'?&#%\n'


@pytest.mark.parametrize("resource", ["stock:1", ODD, "ö" * 200])
def test_its_address_takes_any_name(admin_client, resource):
    response = admin_client.get(timeline_url("admin", "default", resource))
    assert response.status_code == 200
    assert response.context["resource"] == resource
