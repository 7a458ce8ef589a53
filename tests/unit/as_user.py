"""Run code as another user: ``as_user.py UID GROUP,... CODE [ARGUMENT ...]``, by root.

What the code imports is imported before: the other user may not reach this Python's own folder.
"""

import encodings.ascii
import encodings.idna  # noqa: F401 - as all of these: loaded by name, later
import os
import pkgutil
import sys
from importlib import import_module

import watchfiles  # noqa: F401

import hicache_obs

for module in pkgutil.walk_packages(hicache_obs.__path__, "hicache_obs."):
    if not module.name.endswith("__main__"):
        import_module(module.name)
_, user, groups, code, *arguments = sys.argv
program = compile(code, "<as_user>", "exec")
gids = [int(gid) for gid in groups.split(",")]
os.setgroups(gids[1:])
os.setgid(gids[0])
os.setuid(int(user))
sys.argv = ["hicache-obs", *arguments]
exec(program, {"__name__": "__main__"})
