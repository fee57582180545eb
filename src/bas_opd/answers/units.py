"""Units of measure: their dimensions, and their sizes relative to each other."""

from __future__ import annotations

from fractions import Fraction

_UNITS = {
    "length": "mm,millimeter,millimetre:1 cm,centimeter,centimetre:10 m,meter,metre:1000"
    " km,kilometer,kilometre:1000000 in,inch,inche:25.4 ft,foot,feet:304.8"
    " yd,yard:914.4"
    " mi,mile:1609344",
    "mass": "mg,milligram:1 g,gram:1000 kg,kilo,kilogram:1000000"
    " lb,pound:453592.37 oz,ounce:28349.523125",
    "volume": "ml,milliliter,millilitre:1 cl:10 l,liter,litre:1000",
    "time": "sec,second:1 min,minute:60 h,hr,hour:3600 day:86400 week:604800",
    "calendar": "month:1 year,yr:12",
    "speed": "m/s:3600 km/h,kph,kmh:1000 mph:1609.344 knot:1852",
    "data": "kb,kilobyte:1 mb,megabyte:1000 gb,gigabyte:1000000 tb,terabyte:1000000000",
    "part": "%,percent,per:1",
    "celsius": "°c,celsius:1",
    "fahrenheit": "°f,fahrenheit:1",
    "angle": "°,degree:1",
    "dollar": "$,dollar,usd:1",
    "euro": "€,euro,eur:1",
    "sterling": "£,gbp:1",
    "yen": "¥,yen,jpy:1",
}
_SIZES = {
    name: (dimension, Fraction(size))
    for dimension, units in _UNITS.items()
    for names, size in (unit.rsplit(":", 1) for unit in units.split())
    for name in names.split(",")
}


def unit_of(word: str) -> tuple[str, Fraction] | None:
    """Return the dimension and the size of a unit, in the singular or the plural."""
    return _SIZES.get(word) or _SIZES.get(word.removesuffix("s"))
