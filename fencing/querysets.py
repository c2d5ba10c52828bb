"""``FencedQuerySet``: every bulk path of the ORM is fenced, and no read leaves out what the fence compares."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

from django.db import connections, models, router

from fencing import bulkwrites, conflicts, deletes, history, lockedrows
from fencing.exceptions import ResourceMismatchError
from fencing.leases import Lease
from fencing.lifting import lifted
from fencing.maintenance import number_for
from fencing.naming import fence_of, key_as_read, name_of_new, settle_name
from fencing.scope import find_lease, held_leases, lease_required
from fencing.statements import attempt, plain
from fencing.writes import record_unfenced

M = TypeVar("M", bound=models.Model)

# So many rows are looked at to tell whether a write without a lease needs a single one.
LOOKED_AT = 100


class FencedQuerySet(models.QuerySet[M]):
    """A queryset whose writes need the leases of the rows that they match; all of them, or nothing is written."""

    _fence_pins: dict[Any, int] | None = None

    @property
    def db(self) -> str:
        """The alias to use; under a lease reads come from where the writes go, never from a replica that lags."""
        if self._db or self._for_write or not held_leases():  # type: ignore[attr-defined]
            return str(super().db)
        return str(router.db_for_write(self.model, **self._hints))  # type: ignore[attr-defined]

    def _clone(self) -> Any:
        clone = super()._clone()  # type: ignore[misc]
        clone._fence_pins = self._fence_pins
        return clone

    def only(self, *fields: Any) -> Any:
        """Django's, with ``last_token`` and what the resource's name is made of: those come from the row's own read."""
        return super().only(*dict.fromkeys((*fields, *self._never_deferred())))

    def defer(self, *fields: Any) -> Any:
        """Django's, but ``last_token`` and what the resource's name is made of stay."""
        kept = self._never_deferred()
        return super().defer(*(field for field in fields if field not in kept))

    def _never_deferred(self) -> tuple[str, ...]:
        fence = fence_of(self.model)
        return ("last_token", *(fence.owner._meta.get_field(one).name for one in (*fence.attributes, *fence.keys)))

    def update(self, **kwargs: Any) -> int:
        """Update the matched rows under their leases: all of them, or none.

        Raises:
            LeaseRequiredError: rows match and no lease is held.
            ResourceMismatchError: a matched row belongs to a resource that is not held.
            StaleWriteError: a matched row, or its resource, has seen a newer token.
        """
        if "last_token" in kwargs:
            raise TypeError("last_token is set by the fence; leave it out of update().")
        if self.query.is_sliced:
            raise TypeError("Cannot update a query once a slice has been taken.")
        if self._fence_pins is not None:
            return bulkwrites.update_rows(self, kwargs, self._fence_pins)
        if self._nothing_to_write("QuerySet.update()"):
            return 0
        return bulkwrites.update(self, kwargs)

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_update(self, objs: Iterable[M], fields: Iterable[str], batch_size: int | None = None) -> int:
        """Django's, each object compared with what was read of it; see ``update`` for what is raised.

        Raises:
            StaleReadError: an object is no longer the row that was read.
            RowMissingError: an object's row is gone.
        """
        objs, fields = tuple(objs), tuple(fields)
        if "last_token" in fields:
            raise TypeError("last_token is set by the fence; leave it out of bulk_update().")
        connection = self._write_connection()
        if not objs or lifted(connection) is not None or any(obj.pk is None for obj in objs):
            return super().bulk_update(objs, fields, batch_size)
        if not held_leases():
            fence = fence_of(self.model)
            names = [obj._fence_name_on_record(fence) for obj in objs[: LOOKED_AT + 1]]  # type: ignore[attr-defined]
            raise self._lease_required(names, "bulk_update()")
        tied = self._chain()  # type: ignore[attr-defined]
        # Django's set_<model>_order() makes objects of the keys that it was given: nothing of them was read.
        blind = fields == ("_order",) and all(obj._state.adding for obj in objs)
        with lockedrows.fenced_steps(connection):
            tied._fence_pins = pins = bulkwrites.pins_of(tied, objs, blind=blind)
            count = super(FencedQuerySet, tied).bulk_update(objs, fields, batch_size)
        keys = [bulkwrites.key_of(obj) for obj in objs]
        different = Counter(key for key, _same in {(key, id(obj)) for key, obj in zip(keys, objs, strict=True)})
        for obj, key in zip(objs, keys, strict=True):
            # Of several objects of one row only one was written, and none of them knows which.
            obj._fence_accept(pins[key], moved=different[key] == 1)  # type: ignore[attr-defined]
            obj._fence_forget_expressions(fields)  # type: ignore[attr-defined]
        return int(count)

    bulk_update.alters_data = True  # type: ignore[attr-defined]

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete the matched rows, and what Django deletes with them, under their leases: all of them, or none.

        Raises: as ``update``.
        """
        if self._is_odd_for_delete() or self._nothing_to_write("QuerySet.delete()"):
            return super().delete()
        connection = self._write_connection()
        with lockedrows.fenced_steps(connection):
            keys = lockedrows.lock_matching(connection, fence_of(self.model), self._keys())
            # Not through a manager: it may hide rows that this queryset has matched.
            matched: FencedQuerySet[M] = FencedQuerySet(self.model, using=connection.alias).filter(pk__in=keys)
            result = deletes.delete_rows(connection, matched, self)
        self._result_cache = None
        return result

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def _raw_delete(self, using: str | None) -> int:
        return deletes.raw_delete(self, using)

    def bulk_create(
        self,
        objs: Iterable[M],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[M]:
        """Django's; objects whose resource is held pass it and carry its token, the others start at 0.

        With ``update_conflicts`` every object needs its lease, and ``unique_fields`` must hold what the resource's
        name is made of, so that the row in conflict is of the same resource.

        Raises:
            LeaseRequiredError: a lease is needed and not held.
            NotSupportedError: ``unique_fields`` do not decide the resource.
            StaleWriteError: a newer holder came first; nothing was written.
        """
        objs = list(objs)
        connection = self._write_connection()
        options: dict[str, Any] = {
            "batch_size": batch_size,
            "ignore_conflicts": ignore_conflicts,
            "update_conflicts": update_conflicts,
            "update_fields": update_fields,
            "unique_fields": unique_fields,
        }
        if update_conflicts:
            options["update_fields"] = [*(update_fields or ()), "last_token"]
            conflicts.ensure_one_resource(connection, self.model, objs, unique_fields or ())
        number = lifted(connection)
        if number is not None:
            with lockedrows.fenced_steps(connection):
                return self._bulk_create_unfenced(objs, number, options)
        if update_conflicts:
            # The name of a row that is there stays as it is, see ``ensure_of_resource``.
            options["update_fields"] = conflicts.without_names(fence_of(self.model), options["update_fields"])
        leases = self._leases_to_create(objs, needed=update_conflicts)
        created = self._bulk_create_fenced(objs, leases, options)
        for obj, lease in zip(created, leases, strict=True):
            if lease is not None:
                # Of an upsert nobody knows which rows it has met.
                key = None if update_conflicts else key_as_read(self.model, obj.pk)
                lease.remember(connection, fence_of(self.model).label, obj.last_token, key)  # type: ignore[attr-defined]
        return created

    bulk_create.alters_data = True  # type: ignore[attr-defined]

    def _bulk_create_fenced(self, objs: list[M], leases: list[Lease | None], options: dict[str, Any]) -> list[M]:
        fence, connection = fence_of(self.model), self._write_connection()
        rows: defaultdict[Lease, list[M]] = defaultdict(list)
        for obj, lease in zip(objs, leases, strict=True):
            if lease is not None:
                rows[lease].append(obj)
        keys = {lease: [obj.pk for obj in mine] for lease, mine in rows.items()}
        over = options["update_conflicts"] or options["ignore_conflicts"]
        before = [(obj.__dict__.copy(), obj._state.adding, obj._state.db) for obj in objs]
        written: dict[Lease, list[Any]] = {}
        try:
            with lockedrows.fenced_insert(connection, fence, keys, over=over) as tokens:
                for obj, lease in zip(objs, leases, strict=True):
                    obj.last_token = 0 if lease is None else tokens[lease]  # type: ignore[attr-defined]
                created = super().bulk_create(objs, **options)
                for held, token in tokens.items():
                    self._ensure_created_as(held, token, rows[held], options)
                    lockedrows.pass_inserted(connection, fence, held, keys[held], token)
                    made = [obj.pk for obj in rows[held]]
                    if options["ignore_conflicts"]:
                        made = conflicts.rows_inserted(connection, fence, rows[held], token)
                    written[held] = made
                    record = [attempt(held, fence, pk, token, action="insert", seen=None) for pk in made]
                    history.record(connection, record)
        except BaseException:
            # Django has made them look like rows.
            for obj, (values, adding, alias) in zip(objs, before, strict=True):
                obj.__dict__.clear()
                obj.__dict__.update(values)
                obj._state.adding, obj._state.db = adding, alias
            raise
        for held, made in written.items():
            held.accepted += bool(made)
            for pk in made:
                held.refusals.mend(connection, f"{fence.label} {key_as_read(fence.owner, pk)}")
        for obj in created:
            if over:
                obj._fence_forget_row()  # type: ignore[attr-defined]
            else:
                obj._fence_accept(obj.last_token)  # type: ignore[attr-defined]
        return created

    def _ensure_created_as(self, held: Lease, token: int, rows: list[M], options: dict[str, Any]) -> None:
        """Undo an INSERT of rows that are not of the resource under whose lease they were created."""
        fence = fence_of(self.model)
        for obj in rows:
            if fence.made and name_of_new(obj) != held.resource:
                raise ResourceMismatchError(held.resource, name_of_new(obj), f"creating {fence.label}")
        if options["update_conflicts"]:
            conflicts.ensure_of_resource(self._write_connection(), fence, rows, held.resource, token)

    def _bulk_create_unfenced(self, objs: list[M], number: int, options: dict[str, Any]) -> list[M]:
        fence, connection = fence_of(self.model), self._write_connection()
        if options["update_conflicts"]:
            highest = conflicts.highest_alike(connection, self.model, objs, options["unique_fields"] or ())
            number = number_for(connection, fence.using, name_of_new(objs[0]) or "", highest) if objs else number
        for obj in objs:
            obj.last_token = number  # type: ignore[attr-defined]
        if options["update_conflicts"] and connection.vendor == "sqlite":
            conflicts.never_lower(connection, self.model, objs, options["unique_fields"] or ())
        created = super().bulk_create(objs, **options)
        named = [(obj.pk, obj._fence_name_on_record(fence)) for obj in created]  # type: ignore[attr-defined]
        record_unfenced(connection, fence, named, number, "insert")
        return created

    def _leases_to_create(self, objs: list[M], *, needed: bool) -> list[Lease | None]:
        fence, leases, without = fence_of(self.model), [], []
        for obj in objs:
            settle_name(obj)
            name = name_of_new(obj)
            leases.append(find_lease(name, fence.using) if name else None)
            if leases[-1] is None:
                without.append(name)
        if without and (needed or fence.inserts):
            raise lease_required(without, fence.template, f"bulk_create() of {fence.label}")
        return leases

    def _nothing_to_write(self, what: str) -> bool:
        """Without a lease: whether no row matches; LeaseRequiredError if one does."""
        connection = self._write_connection()
        if lifted(connection) is not None or held_leases():
            return False
        if self.using(connection.alias).exists():
            raise self._lease_required(self._first_names(connection), what)
        return True

    def _lease_required(self, names: list[str], what: str) -> Exception:
        """The error of a write without a lease, given the resources of one row more than are looked at."""
        fence = fence_of(self.model)
        unseen = [""] * (len(names) > LOOKED_AT)
        return lease_required([*names, *unseen], fence.template, f"{what} of {self.model._meta.label}")

    def _first_names(self, connection: Any) -> list[str]:
        """The resources of the first matched rows, one more than are looked at; none of a query that Django refuses."""
        if self.query.combinator or self.query.distinct_fields:
            return []
        fence = fence_of(self.model)
        rows = plain(fence.owner, connection.alias).filter(pk__in=self.using(connection.alias)._keys())
        return [fence.name_on_record(row) for row in rows.values(*fence.attributes)[: LOOKED_AT + 1]]

    def _is_odd_for_delete(self) -> bool:
        """Whether Django is going to refuse the delete anyway, with a message of its own."""
        only_values = self._fields is not None  # type: ignore[attr-defined]
        return any((self.query.is_sliced, self.query.distinct_fields, self.query.combinator, only_values))

    def _keys(self) -> Any:
        return self.order_by().values("pk")

    def _write_connection(self) -> Any:
        self._for_write = True
        return connections[self.db]


FencedManager = models.Manager.from_queryset(FencedQuerySet, "FencedManager")
