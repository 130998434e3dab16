"""The encodings that change a trained one at test time."""

TEST_TIME = frozenset(
    {
        *("pi", "ntk_old", "ntk_fixed", "ntk_mixed", "yarn", "longrope", "dynamic_ntk"),
        *("rerope", "leaky_rerope", "self_extend"),
    }
)
"""Those of conf/pe whose class has ``at_test_time``; tables are made without importing classes."""
MARK = " †"
LEGEND = "† made for a trained rope at test time, trained from scratch here."
"""What the mark of such an encoding says in tables and charts of trained runs."""
