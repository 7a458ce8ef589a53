"""Hooks: one observer a native boundary. ``install`` puts them in place, ``around`` runs them."""
