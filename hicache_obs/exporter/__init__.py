"""The exporter: follows the journals of a host and serves what they tell.

In the order of the data: ``tail`` (new bytes of one journal), ``fold`` (one run), ``verdict``
(what a death means), ``standing`` (which rows stand), ``checkpoint`` (what outlives journals),
``directory`` and ``host`` (all of it, kept current), ``collector``, ``view``, ``page`` and ``web``
(what is served). Nothing here needs SGLang, torch or Mooncake.
"""
