"""The page of every way to write: it is what the tests do, and names every public method of Django that writes."""

from __future__ import annotations

from django.db import models

from fencing.models import FencedModel
from tests.shop.models import Badge, Bin, Warehouse
from tests.writes import paths
from tests.writes.ways import FAMILIES


def test_the_page_is_what_the_tests_do() -> None:
    assert paths.DOCUMENT.read_text() == paths.document(FAMILIES), "python -m tests.writes.paths writes it anew"


READS = {
    "QuerySet": """
        aaggregate acontains acount aearliest aexists aexplain afirst aget aggregate ain_bulk aiterator alast alatest
        alias all annotate as_manager complex_filter contains count dates datetimes db defer difference distinct
        earliest exclude exists explain extra filter first get in_bulk intersection iterator last latest none only
        order_by ordered prefetch_related query raw resolve_expression reverse select_for_update select_related union
        using values values_list fetch_mode totally_ordered
    """,
    "Manager": "auto_created check contribute_to_class creation_counter db_manager deconstruct from_queryset get_queryset use_in_migrations",
    "Model": """
        arefresh_from_db check clean clean_fields date_error_message fence_name from_db full_clean get_constraints
        get_deferred_fields prepare_database_save refresh_from_db serializable_value unique_error_message
        validate_constraints validate_unique DoesNotExist MultipleObjectsReturned NotUpdated Meta
        get_next_by_changed_at get_previous_by_changed_at get_card_order
    """,
    "RelatedManager": "do_not_call_in_templates get_prefetch_queryset get_prefetch_querysets",
    "ManyRelatedManager": """
        constrained_target do_not_call_in_templates get_prefetch_cache get_prefetch_queryset get_prefetch_querysets
    """,
}

# What does the same as another way, by calling it.
SAME = {
    "ManyRelatedManager.set_base": "ManyRelatedManager.set",
    **{
        f"ManyRelatedManager.{name}": f"QuerySet.{name}"
        for one in ("create", "get_or_create", "update_or_create")
        for name in (one, f"a{one}")
    },
}


def public(kind: type, *without: type) -> set[str]:
    """The public names of a class that none of the others has."""
    inherited = {name for other in without for name in dir(other)}
    return {name for name in dir(kind) if not name.startswith("_")} - inherited


def called(kind: type) -> set[str]:
    """The public methods of a model."""
    return {name for name in public(kind) if callable(getattr(kind, name, None))}


def all_public() -> dict[str, set[str]]:
    """The public names of everything of Django that writes rows."""
    related, many = type(Warehouse(pk=1).bin_set), type(Badge(pk=1).boxes)
    # What a related manager overrides of its queryset is its own.
    own = {name for name in vars(related) if name in vars(models.QuerySet) and not name.startswith("_")}
    return {
        "QuerySet": public(models.QuerySet),
        "Manager": public(models.Manager, models.QuerySet),
        "Model": called(Bin) | (called(Warehouse) & {"get_card_order", "set_card_order"}),
        "RelatedManager": public(related, models.Manager) | own,
        "ManyRelatedManager": public(many, models.Manager),
    }


def test_every_public_method_of_django_is_a_way_to_write_or_only_reads() -> None:
    ways = {method for family in FAMILIES.values() for path in family for method in path.methods}
    names = {f"{kind}.{name}" for kind, found in all_public().items() for name in found}
    reads = {f"{kind}.{name}" for kind, text in READS.items() for name in text.split()}
    assert names - ways - reads - SAME.keys() == set(), "they need a row in the table of ways to write, or only read"
    assert ways - names == set(), "there is no such method"
    assert not ways & reads and ways >= {*SAME.values()}


def test_no_way_has_a_double() -> None:
    for family in FAMILIES.values():
        shown = [(path.how, path.since, path.subject) for path in family]
        assert len(shown) == len(set(map(repr, shown)))


def test_fenced_models_add_no_way_of_their_own() -> None:
    """A public method of ours that Django's model has not must be one that is known to read."""
    assert public(FencedModel, models.Model) - {"objects", "last_token", "Meta"} == {
        "fence_inserts", "fence_name", "fence_resource", "fence_using",
    }  # fmt: skip
