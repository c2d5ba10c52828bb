"""The app speaks German and French: catalogues that are complete and fresh, and pages that use them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation

import fencing
from fencing import lease
from fencing.admin import links
from fencing.models import FencedResource, FencedWrite, HeldLease, Operation, Reign, TokenGrant, TokenRange
from tests.admin.catalogues import Message, messages, need_gettext, placeholders, run, untranslated
from tests.admin.pages import text_of
from tests.admin.rows import grant, list_url, write

APP = Path(fencing.__file__).parent
TEMPLATES = sorted((APP / "templates").rglob("*.html"))
LANGUAGES = ["de", "fr"]
HOW = (
    "In fencing/, run `python -m django makemessages -l de -l fr --no-location --no-obsolete`, translate what is new or "
    "fuzzy, then run `python -m django compilemessages`."
)
BIG = 2**53 + 1
MEMORY = {"BACKEND": "fencing.backends.memory.MemoryBackend", "NAMESPACE": "translated"}


def catalogue(language: str, ending: str = "po") -> Path:
    return APP / "locale" / language / "LC_MESSAGES" / f"django.{ending}"


@pytest.fixture
def texts_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, ...]]:
    """Every text that the app marks for translation now, found in a copy without catalogues."""
    need_gettext()
    copy = tmp_path / "fencing"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("locale", "__pycache__"))
    (copy / "locale").mkdir()
    monkeypatch.chdir(copy)
    call_command("makemessages", locale=["de"], keep_pot=True, no_location=True, verbosity=0)
    return set(messages(copy / "locale" / "django.pot"))


def test_the_catalogues_have_the_texts_of_the_code_and_no_others(texts_of_the_code):
    assert len(texts_of_the_code) > 250
    for language in LANGUAGES:
        have = set(messages(catalogue(language)))
        assert texts_of_the_code - have == set(), f"{language} lacks these. {HOW}"
        assert have - texts_of_the_code == set(), f"{language} has these, which nobody shows any more. {HOW}"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated_and_keeps_what_is_filled_in(language):
    need_gettext()
    run("msgfmt", "--check", "--output-file=/dev/null", catalogue(language))
    for message in messages(catalogue(language)).values():
        assert not message.fuzzy and all(message.translations), message
        assert_keeps_placeholders(message)


def assert_keeps_placeholders(message: Message) -> None:
    """Singular and plural texts of this app have the same placeholders."""
    for text in (*message.texts, *message.translations):
        assert placeholders(text) == placeholders(message.texts[0]), message


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_catalogue_is_that_of_the_texts(language, tmp_path):
    need_gettext()
    run("msgfmt", f"--output-file={tmp_path / 'django.mo'}", catalogue(language))
    assert run("msgunfmt", catalogue(language, "mo")) == run("msgunfmt", tmp_path / "django.mo")


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.relative_to(APP / "templates").as_posix())
def test_a_template_has_no_words_of_its_own(template):
    assert untranslated(template.read_text()) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("<p>Nobody {{ name }}</p>", ["Nobody"]),
        ('{% if x %}<a title="Look" href="a">1</a>{% endif %}', ["Look"]),
        ('<input type="submit" value="Go"><input value="kept">', ["Go"]),
        ('<p title="{% translate "Time" %}">{% blocktranslate %}Now {{ x }}{% endblocktranslate %} · 3</p>', []),
    ],
)
def test_words_outside_translations_are_found(source, words):
    assert untranslated(source) == words


@pytest.fixture
def speaking(settings: Any, admin_client: Client) -> Any:
    """A function that gets a page as a browser of some language asks for it."""
    settings.FENCING = {"BACKENDS": {"default": MEMORY}}
    settings.USE_THOUSAND_SEPARATOR = True
    session = settings.MIDDLEWARE.index("django.contrib.sessions.middleware.SessionMiddleware")
    settings.MIDDLEWARE = [*settings.MIDDLEWARE]
    settings.MIDDLEWARE.insert(session + 1, "django.middleware.locale.LocaleMiddleware")
    # LocaleMiddleware leaves its language to the next request of the thread; the test after this one is in English.
    with translation.override("en"):
        yield lambda language, url: text_of(admin_client.get(url, headers={"accept-language": language}))


LISTS = {
    TokenGrant: ("Vergaben", "Attributions", "in den letzten 24 Stunden", "dans les dernières 24 heures"),
    FencedWrite: ("Schreibversuche", "Tentatives", "veraltet geschrieben", "écriture périmée"),
    FencedResource: ("Ressourcen", "Ressources", "Begonnene Transaktionen", "Transactions commencées"),
    Operation: ("Operationen", "Opérations", "Schlüssel", "Clé"),
    Reign: ("Regentschaften", "Règnes", "Erstes Token", "Premier jeton"),
    TokenRange: ("Token-Bereiche", "Plages de jetons", "Höchstes reserviertes Token", "Plus haut jeton réservé"),
}


@pytest.fixture
def rows(db: None) -> None:
    grant(BIG)
    write(BIG, "stale", seen=BIG)
    now = timezone.now()
    FencedResource.objects.create(namespace="default", name="stock:1", last_token=BIG, holder="h")
    Operation.objects.create(namespace="default", resource="stock:1", key="k", token=BIG, result=1, applied_at=now)
    Reign.objects.create(namespace="default", partition=0, reign="r", server="s", first_token=BIG, opened_at=now)
    TokenRange.objects.update(ceiling=BIG)


@pytest.mark.parametrize("model", LISTS, ids=lambda model: model.__name__)
def test_the_lists_and_their_rows_are_in_german_and_french(speaking, rows, model):
    german, french, german_word, french_word = LISTS[model]
    row = reverse(f"admin:fencing_{model._meta.model_name}_change", args=[model.objects.get().pk])
    for url in (list_url(model), row):
        assert german in speaking("de", url) and french in speaking("fr", url)
        assert str(BIG) in speaking("de", url) and str(BIG) in speaking("fr", url)
    assert german_word in speaking("de", list_url(model)) and french_word in speaking("fr", list_url(model))


def test_the_timeline_is_in_german_and_french(speaking, rows):
    url = links.timeline_url("admin", "default", "stock:1")
    for language, words in {
        "de": ["Zeitstrahl von stock:1", "1 Token, das neueste oben", "1 abgelehnter Schreibvorgang", "Ausgang"],
        "fr": ["Chronologie de stock:1", "1 jeton, le plus récent en haut", "1 écriture refusée", "Issue"],
    }.items():
        page = speaking(language, url)
        assert [word for word in words if word not in page] == []
        assert f" {BIG} " in page


def test_live_leases_and_their_revocation_are_in_german_and_french(speaking, rows):
    with lease("stock:1") as held:
        for language, word, title in [
            ("de", "Verbleibende Zeit", "Lease von stock:1 entziehen"),
            ("fr", "Temps restant", "Révoquer le bail de stock:1"),
        ]:
            page = speaking(language, list_url(HeldLease))
            assert word in page and f" {held.token} " in page
            page = speaking(language, links.revoke_url("admin", "default", "stock:1"))
            assert word in page and title in page and f" {held.token} " in page


def test_counts_and_languages_without_a_catalogue(speaking, rows):
    grant(BIG + 1)
    write(BIG + 1, "stale")
    url = links.timeline_url("admin", "default", "stock:1")
    assert "2 Tokens, das neueste oben" in speaking("de", url)
    assert "2 écritures refusées" in speaking("fr", url)
    assert "2 tokens, the newest on top" in speaking("it", url)
    write(BIG, "stale")
    assert "2 veraltete Schreibvorgänge" in speaking("de", list_url(TokenGrant))
    assert "1 veralteter Schreibvorgang" in speaking("de", list_url(TokenGrant))
    assert "2 écritures périmées" in speaking("fr", list_url(TokenGrant))
