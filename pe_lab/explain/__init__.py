"""Why a trained model fails at length: interventions on attention, and the verdict they give."""
