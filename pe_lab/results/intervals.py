"""Mean, spread and 95 % interval of a number over seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Spread:
    """``n`` values, their mean, standard deviation (n - 1) and 95 % interval of the mean.

    With one value the last three are nan: one seed says nothing of the others.
    """

    n: int
    mean: float
    sd: float
    low: float
    high: float


def over_seeds(values: Sequence[float]) -> Spread:
    """Mean, standard deviation and Student's t interval: mean ± t_95(n) sd / sqrt(n).

    It takes the seeds for a sample of a normal population. Errors are bounded and often skewed:
    with few seeds read it as a rough guide, and nothing keeps it from passing 0.

    Raises:
        ValueError: no values.
    """
    n = len(values)
    if not n:
        raise ValueError("no values to take the mean of")
    mean = statistics.fmean(values)
    if n == 1:
        return Spread(1, mean, math.nan, math.nan, math.nan)
    sd = statistics.stdev(values)
    half = t_95(n) * sd / math.sqrt(n)
    return Spread(n, mean, sd, mean - half, mean + half)


@cache
def t_95(n: int) -> float:
    """The 97.5 % quantile of Student's t with n - 1 degrees of freedom; nan for one value."""
    if n < 2:
        return math.nan
    if n - 2 < len(_T_95):
        return _T_95[n - 2]
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.975))


# scipy's values for n = 2, 3, .. : importing it is a quarter of a second at every table.
_T_95 = (
    12.706204736174694,
    4.302652729749462,
    3.1824463052837078,
    2.7764451051977934,
    2.5705818356363146,
    2.4469118511449786,
    2.364624251592784,
    2.306004135204166,
    2.262157162798205,
    2.228138851986274,
    2.200985160091639,
    2.1788128296672284,
    2.1603686564627913,
    2.144786687917804,
    2.131449545559776,
    2.1199052992212546,
    2.1098155778333156,
    2.1009220402410382,
    2.0930240544083087,
    2.085963447265864,
    2.0796138447276795,
    2.0738730679040254,
    2.0686576104190486,
    2.0638985616280245,
    2.0595385527532972,
    2.0555294386428735,
    2.0518305164802846,
    2.0484071417952454,
    2.045229642132703,
)
