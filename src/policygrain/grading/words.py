"""Words after a quantity: units with their names, and words that change the value."""

from __future__ import annotations

# A unit, and other names of it.
UNITS = """
mm: millimeter millimeters millimetre millimetres
cm: centimeter centimeters centimetre centimetres
dm: decimeter decimeters
m: meter meters metre metres
km: kilometer kilometers kilometre kilometres
nm: nanometer nanometers
um: micrometer micrometers micron microns μm µm
in: inch inches
ft: foot feet
yd: yard yards yds
mi: mile miles
mg: milligram milligrams
g: gram grams gm gms
kg: kilogram kilograms kgs
lb: lbs pound pounds
oz: ounce ounces
ton: tons tonne tonnes
ms: millisecond milliseconds
s: sec secs second seconds
min: mins minute minutes
h: hr hrs hour hours
day: days
week: weeks
month: months
yr: yrs year years
ml: mL milliliter milliliters millilitre millilitres
l: L liter liters litre litres
gal: gallon gallons
mph:
degree: degrees deg
radian: radians rad rads
celsius: °C
fahrenheit: °F
K: kelvin kelvins
dollar: dollars USD usd \\$
cent: cents
euro: euros EUR
sterling: GBP
rupee: rupees Rs rs INR
yuan: RMB CNY
yen: JPY
N: newton newtons
J: joule joules
kJ: kilojoule kilojoules
W: watt watts
kW: kilowatt kilowatts
V: volt volts
A: amp amps ampere amperes
Hz: hertz
kHz: kilohertz
MHz: megahertz
GHz: gigahertz
Pa: pascal pascals
kPa: kilopascal kilopascals
atm: atmosphere atmospheres
C: coulomb coulombs
T: tesla teslas
mol: mole moles
ohm: ohms Ω
eV: electronvolt electronvolts
keV:
MeV:
GeV:
erg: ergs
dyne: dynes
angstrom: angstroms Å
pc: parsec parsecs
kpc:
Mpc:
AU:
ly: lightyear lightyears
acre: acres
hectare: hectares
"""

# A quantity with one of these words is not its number alone: they change the value, name another one or deny it.
MEANINGFUL = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety dozen dozens score pair
pairs couple gross hundred thousand million billion trillion hundreds thousands millions billions trillions
half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth
eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths percent percents percentage pct
permille squared cubed square cube root power powers exponent factorial times plus minus over divided
multiplied by double twice triple point and or nor not no none anything otherwise else unless
except but if when where for all every everything either both neither negative positive mod modulo base log ln
exp sin cos tan cot csc to through until between at least most more less greater fewer larger smaller than
about around approximately roughly nearly almost infinity infinite infinitely inf does exist undefined
impossible unknown wrong incorrect false maybe perhaps possibly probably is are was equals equal reciprocal
inverse conjugate complex imaginary i e pi many several first last choice option versus vs ratio
"""
