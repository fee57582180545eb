"""How theta moves: the learner and its objectives."""
