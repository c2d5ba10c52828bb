"""The SQL of the guard: what its triggers are on each database, as templates for Django's DDL statements."""

from __future__ import annotations

# One script, so that it is one transaction even where the migration is not atomic. Each guard brings the function
# along: no migration then depends on this app's. The advisory lock is for two migrations at the same time, which
# would else end in "tuple concurrently updated". Trigger names are fixed, because names made from long model names
# are cut at 63 bytes and could collide; WHEN names last_token only, so that every other column can be altered and
# an allowed update does not call the function at all. No percent sign: Django may or may not interpolate this text.
POSTGRESQL_CREATE = """\
SELECT pg_advisory_xact_lock(hashtext('fencing_guard'));
CREATE OR REPLACE FUNCTION fencing_guard() RETURNS trigger LANGUAGE plpgsql AS $fencing$
DECLARE
    unfenced text := substring(current_setting('fencing.unfenced', true) from '^[0-9]{1,16}$');
    named text := substring(current_setting('fencing.token', true) from '^[0-9]{1,16}$');
    attempt text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF unfenced IS NOT NULL OR named::bigint > OLD.last_token THEN
            RETURN OLD;
        END IF;
        attempt := 'last_token is ' || OLD.last_token || ', the transaction named ' || coalesce(named, 'no token');
    ELSE
        IF unfenced IS NOT NULL THEN
            NEW.last_token := greatest(OLD.last_token, unfenced::bigint);
            RETURN NEW;
        END IF;
        attempt := 'last_token is ' || OLD.last_token || ', the new one ' || coalesce(NEW.last_token::text, 'NULL');
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = '23514',
        CONSTRAINT = TG_ARGV[0],
        TABLE = TG_TABLE_NAME,
        SCHEMA = TG_TABLE_SCHEMA,
        MESSAGE = 'fencing guard "' || TG_ARGV[0] || '" refused ' || TG_OP || ' of table "' || TG_TABLE_NAME || '": '
            || attempt,
        HINT = 'Write under a lease of the row''s resource, or use unfenced("reason") for maintenance and '
            'fencing.operations.Unfenced in a migration. TRUNCATE is not fenced.';
END
$fencing$;
CREATE TRIGGER fencing_guard_update BEFORE UPDATE ON %(table)s FOR EACH ROW
    WHEN ((NEW.last_token > OLD.last_token) IS NOT TRUE) EXECUTE FUNCTION fencing_guard(%(name)s);
CREATE TRIGGER fencing_guard_delete BEFORE DELETE ON %(table)s FOR EACH ROW
    EXECUTE FUNCTION fencing_guard(%(name)s)"""

POSTGRESQL_REMOVE = """\
DROP TRIGGER IF EXISTS fencing_guard_update ON %(table)s;
DROP TRIGGER IF EXISTS fencing_guard_delete ON %(table)s"""

# SQLite's guard asks functions that Django processes define. To any other program SQLite says that there is no such
# function, and nothing else, so it is their names that say what to do.
SQLITE_FUNCTIONS = {
    "token": "fencing guard: Django deletes from this table, under a lease or in unfenced()",
    "unfenced": "fencing guard: Django writes this table, under a lease or in unfenced()",
}

# SQLite's trigger names are unique in the whole database, so they carry the guard's name. Its RAISE takes nothing but
# a literal, and a BEFORE trigger cannot change NEW: with the fence lifted, the ORM's statements carry the number.
SQLITE_CREATE_UPDATE = f"""\
CREATE TRIGGER %(trigger)s BEFORE UPDATE ON %(table)s FOR EACH ROW
WHEN (NEW.last_token > OLD.last_token) IS NOT TRUE AND "{SQLITE_FUNCTIONS["unfenced"]}"() IS NULL
BEGIN SELECT RAISE(ABORT, %(message)s); END"""

SQLITE_CREATE_DELETE = f"""\
CREATE TRIGGER %(trigger)s BEFORE DELETE ON %(table)s FOR EACH ROW
WHEN ("{SQLITE_FUNCTIONS["token"]}"() > OLD.last_token) IS NOT TRUE AND "{SQLITE_FUNCTIONS["unfenced"]}"() IS NULL
BEGIN SELECT RAISE(ABORT, %(message)s); END"""

# MariaDB's trigger names are unique in the whole database, too, and a trigger has one event. A variable belongs to the
# connection, not to the transaction: it counts inside a transaction only, where Python clears it in any case, and
# outside of one for migrations, whose DDL takes no transaction. MESSAGE_TEXT takes a variable, but no expression.
MARIADB_CREATE_UPDATE = """\
CREATE TRIGGER %(trigger)s BEFORE UPDATE ON %(table)s FOR EACH ROW
BEGIN
    DECLARE refusal VARCHAR(512);
    IF (NEW.last_token > OLD.last_token) IS NOT TRUE THEN
        IF @fencing_unfenced REGEXP '^[0-9]{1,16}$' AND (@@in_transaction OR @fencing_migrating IS TRUE) THEN
            SET NEW.last_token = GREATEST(OLD.last_token, CAST(@fencing_unfenced AS SIGNED));
        ELSE
            SET refusal = CONCAT(%(message)s, 'last_token is ', OLD.last_token, ', the new one ',
                COALESCE(NEW.last_token, 'NULL'), %(hint)s);
            SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025, MESSAGE_TEXT = refusal;
        END IF;
    END IF;
END"""

MARIADB_CREATE_DELETE = """\
CREATE TRIGGER %(trigger)s BEFORE DELETE ON %(table)s FOR EACH ROW
BEGIN
    DECLARE refusal VARCHAR(512);
    IF (@fencing_token REGEXP '^[0-9]{1,16}$' AND @@in_transaction
        AND CAST(@fencing_token AS SIGNED) > OLD.last_token) IS NOT TRUE
        AND (@fencing_unfenced REGEXP '^[0-9]{1,16}$' AND (@@in_transaction OR @fencing_migrating IS TRUE)) IS NOT TRUE
    THEN
        SET refusal = CONCAT(%(message)s, 'last_token is ', OLD.last_token, ', the transaction named ',
            COALESCE(@fencing_token, 'no token'), %(hint)s);
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025, MESSAGE_TEXT = refusal;
    END IF;
END"""

MARIADB_REMOVE = "DROP TRIGGER IF EXISTS %(trigger)s"
