"""Rules that would have answered what people answered again and again.

`narrow_rules` makes the narrowest rule of one recorded call, `suggesting` counts them, tries each
on the record and drops those that a denial speaks against. Pure; nothing is written here.
"""
