"""Settings of the example project: real servers, no secrets, for one developer's machine.

Nothing is started here: `manage.py` and the tests do that (see `inventory_demo.servers`).
"""

from __future__ import annotations

import os
from typing import Any

from inventory_demo.server_addresses import CHECKOUT, addresses

_servers = addresses()

BASE_DIR = CHECKOUT
DEBUG = True
SECRET_KEY = "not a secret: the example project serves this machine only"  # noqa: S105
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
ROOT_URLCONF = "inventory_demo.urls"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "fencing",
    "inventory_demo",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES: dict[str, dict[str, Any]] = {"default": _servers.database}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "leases": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": _servers.redis(1),
        # A store that does not answer must become an error, not a hang (seconds).
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 5, "SOCKET_TIMEOUT": 5},
    },
}

FENCING: dict[str, Any] = {
    "BACKENDS": {
        "default": {
            "BACKEND": "fencing.backends.redis.RedisBackend",
            "CACHE": "leases",
            "NAMESPACE": os.environ.get("FENCING_NAMESPACE", "default"),
        },
    },
}

CELERY_BROKER_URL = _servers.celery(2)
CELERY_RESULT_BACKEND = _servers.celery(3)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_RESULT_SERIALIZER = "json"

# Seconds that a task's lease of a stock lives without renewal.
STOCK_TTL = 30

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
