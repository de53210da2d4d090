"""Measurements that are run by hand: see each script's own words."""
