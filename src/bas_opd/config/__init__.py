"""Settings of a run: schema, config files, overrides."""

from bas_opd.config.loading import config_hash, dump, load_config, preset
from bas_opd.config.schema import Config

__all__ = ["Config", "config_hash", "dump", "load_config", "preset"]
