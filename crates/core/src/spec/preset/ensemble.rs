//! Ensembles: workers that train independent models, which answer together.

use super::DialValue::Text;
use super::{Dial, OWN_ROWS, Preset, UPDATE_RULE};

pub(super) const PRESETS: &[Preset] = &[Preset {
    name: "ensemble",
    system: "distributed ensembles (Verbraeken et al. 2020, section 4.2.1)",
    version: None,
    dials: &[
        Dial::fixed("strategy.optimization", Text("decentralized")),
        Dial::fixed("strategy.scheduling.kind", Text("async")),
        Dial::fixed("strategy.exchange.kind", Text("none")),
        Dial::default("strategy.ensemble.combine", Text("average")),
        OWN_ROWS,
    ],
    summary: "Every worker trains a model of its own on its share of the rows, from a start of its own, and sends nothing; the model is all of them, whose predictions are averaged.",
    when: "Links are very slow, or each site's rows are to shape a model of their own; predictions may cost as many passes as there are members.",
    covers: &[
        ("independent models from different starts", "strategy.optimization"),
        ("workers that wait for none", "strategy.scheduling.kind"),
        ("no exchange while they train", "strategy.exchange.kind"),
        (
            "predictions combined as their mean, by vote, or by learned weights (stacking)",
            "strategy.ensemble.combine",
        ),
        ("a shard of the rows per model", "members_train_alone_on_shards_of_their_own"),
        ("one model file that predicts, evaluates and exports", "an_ensemble_is_one_model"),
        ("metrics of the ensemble and of each member", "members_train_alone_on_shards_of_their_own"),
        ("a lost member is dropped", "seeds_keep_promises_of_ensembles"),
        ("batch normalisation by each member's own rows", "model.batchnorm"),
        (UPDATE_RULE, "members_train_alone_on_shards_of_their_own"),
    ],
    missing: &[
        "members of other structures or hyperparameters",
        "bagging: shards are disjoint, no row is drawn twice",
        "networks that predict at every position of a sequence, and auto-encoders",
    ],
}];
