//! Further presets with servers under faults of workers: at different clocks, where the servers carry out the decisions of the
//! first, or asynchronous with local steps or a fraction of the rows.

use crate::invariants::{self, Bounds};
use crate::servers::{Case, PETUUM, QUORUM, STALE_SYNCHRONOUS, assert_shards_survive};

const STALE_SYNCHRONOUS_SHARDS: Case = Case {
    test: "seeds_keep_promises_of_two_ssp_shards",
    settings: &[
        "strategy.preset=parameter-server",
        "strategy.scheduling.kind=ssp",
        "strategy.apply=per_clock",
        "strategy.servers.count=2",
        "train.optimizer={kind='momentum', lr=0.1}",
    ],
    bounds: STALE_SYNCHRONOUS.bounds,
};

const PETUUM_SHARDS: Case = Case {
    test: "seeds_keep_promises_of_three_petuum_shards",
    settings: &[
        "strategy.preset=petuum",
        "strategy.scheduling.kind=essp",
        "strategy.servers.count=3",
        "train.optimizer={kind='sgd', lr=0.5}",
    ],
    bounds: PETUUM.bounds,
};

const QUORUM_SHARDS: Case = Case {
    test: "seeds_keep_promises_of_two_quorum_shards",
    settings: &[
        "strategy.preset=tensorflow-ps",
        "strategy.servers.count=2",
        "train.optimizer={kind='momentum', lr=0.1}",
    ],
    bounds: QUORUM.bounds,
};

/// Late workers leave their gradients.
const QUORUM_ABANDONING: Case = Case {
    test: "seeds_keep_promises_of_a_quorum_whose_late_workers_abandon",
    settings: &[
        "strategy.preset=tensorflow-ps",
        "strategy.scheduling.late=abandon",
        "strategy.servers.count=2",
        "engine.stragglers.probability=0.3",
        "engine.stragglers.factor=4",
        "train.optimizer={kind='momentum', lr=0.1}",
    ],
    bounds: QUORUM.bounds,
};

/// Replicas that begin one after another and step locally between two fetches.
const DOWNPOUR: Case = Case {
    test: "seeds_keep_promises_of_distbelief_downpour",
    settings: &["strategy.preset=distbelief-downpour", "train.optimizer={kind='adagrad', lr=0.05}"],
    bounds: Bounds { unit: 0, loss: 0.1, accuracy: 0.03 },
};

const MULTIVERSO: Case = Case {
    test: "seeds_keep_promises_of_multiverso",
    settings: &["strategy.preset=multiverso", "train.optimizer={kind='sgd', lr=0.5}"],
    bounds: Bounds { unit: 0, loss: 0.3, accuracy: 0.03 },
};

/// One server, which applies the stalest of the updates that wait.
const DIANNE: Case = Case {
    test: "seeds_keep_promises_of_dianne",
    settings: &[
        "strategy.preset=dianne",
        "strategy.scheduling.queue=staleness",
        "train.optimizer={kind='sgd', lr=0.5}",
    ],
    bounds: Bounds { unit: 0, loss: 0.3, accuracy: 0.03 },
};

/// An epoch ends with three of four steps.
const PROJECT_ADAM: Case = Case {
    test: "seeds_keep_promises_of_project_adam",
    settings: &[
        "strategy.preset=project-adam",
        "strategy.servers.count=2",
        "train.optimizer={kind='momentum', lr=0.05}",
    ],
    bounds: Bounds { unit: 0, loss: 0.1, accuracy: 0.03 },
};

const KVSTORE: Case = Case {
    test: "seeds_keep_promises_of_mxnet_kvstore",
    settings: &["strategy.preset=mxnet-kvstore"],
    bounds: invariants::ALL_REDUCE,
};

#[test]
fn seeds_keep_promises_of_two_ssp_shards() {
    assert_shards_survive(&STALE_SYNCHRONOUS_SHARDS, 2);
}

#[test]
fn seeds_keep_promises_of_three_petuum_shards() {
    assert_shards_survive(&PETUUM_SHARDS, 3);
}

#[test]
fn seeds_keep_promises_of_two_quorum_shards() {
    assert_shards_survive(&QUORUM_SHARDS, 2);
}

#[test]
fn seeds_keep_promises_of_a_quorum_whose_late_workers_abandon() {
    assert_shards_survive(&QUORUM_ABANDONING, 2);
}

#[test]
fn seeds_keep_promises_of_distbelief_downpour() {
    assert_shards_survive(&DOWNPOUR, 2);
}

#[test]
fn seeds_keep_promises_of_multiverso() {
    assert_shards_survive(&MULTIVERSO, 2);
}

#[test]
fn seeds_keep_promises_of_mxnet_kvstore() {
    assert_shards_survive(&KVSTORE, 2);
}

#[test]
fn seeds_keep_promises_of_dianne() {
    assert_shards_survive(&DIANNE, 1);
}

#[test]
fn seeds_keep_promises_of_project_adam() {
    assert_shards_survive(&PROJECT_ADAM, 2);
}
