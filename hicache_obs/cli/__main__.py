"""``python -m hicache_obs.cli``."""

from hicache_obs.cli import main

main()
