#!/usr/bin/env python
"""Django's command line for the example project."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line


def main() -> None:
    """Run a command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "inventory_demo.settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
