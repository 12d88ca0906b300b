# SPDX-License-Identifier: Apache-2.0
"""Quire: the KV-cache layer of an LLM inference engine."""

from quire._quire import *  # noqa: F403
from quire._quire import __doc__, __version__  # noqa: F401
