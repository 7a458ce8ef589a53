"""Observability for SGLang HiCache host pools and their registration with Mooncake."""

__version__ = "0.1.0"
