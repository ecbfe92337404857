//! Strategies of workers with parameters and an optimizer state of their own.

use super::{AllReduced, Claims, Dials, Registration, Work, check};
use crate::decentralized::adpsgd::AdPsgd;
use crate::decentralized::block_momentum::BlockMomentum;
use crate::decentralized::diloco::DiLoCo;
use crate::decentralized::dpsgd::{self, Dpsgd};
use crate::decentralized::easgd::{self, Centre};
use crate::decentralized::ensemble::Ensemble;
use crate::decentralized::gosgd::GoSgd;
use crate::decentralized::gossip_learning::GossipLearning;
use crate::decentralized::mpca::MpcaSgd;
use crate::decentralized::post_local::PostLocal;
use crate::decentralized::push_graph;
use crate::decentralized::sgp::Sgp;
use crate::decentralized::slowmo::SlowMo;
use crate::decentralized::sparknet::SparkNet;
use crate::decentralized::tree_easgd::TreeEasgd;
use crate::serving::{clocked, leased};
use thalweg_core::spec::merge::MergeKind;
use thalweg_core::spec::strategy::{Exchange, Optimization, Scheduling};

pub(super) const ENTRIES: &[Registration] = &[
    Registration {
        name: "gosgd",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Async,
            exchange: Exchange::Gossip,
            merge: MergeKind::None,
        },
        claims: Claims::OWN_SPEED,
        sections: &["strategy.gossip"],
        check: check::no_cache,
        start: |of| Box::new(GoSgd::new(of.optimizer, of.parameters)),
    },
    Registration {
        name: "dpsgd",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Neighbours,
            merge: MergeKind::None,
        },
        claims: Claims { own_models: Some(dpsgd::arrived), ..Claims::OWN_MODELS },
        sections: &["strategy.neighbours"],
        check: check::connected_graph,
        start: |of| Box::new(Dpsgd::new(of.optimizer, of.parameters)),
    },
    Registration {
        name: "adpsgd",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Async,
            exchange: Exchange::Neighbours,
            merge: MergeKind::None,
        },
        claims: Claims::OWN_SPEED,
        sections: &["strategy.neighbours"],
        check: check::two_sides,
        start: |of| Box::new(AdPsgd::new(of.optimizer, of.parameters)),
    },
    Registration {
        name: "sgp",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::PushSum,
            merge: MergeKind::None,
        },
        claims: Claims { own_models: Some(push_graph::arrived), ..Claims::OWN_MODELS },
        sections: &["strategy.neighbours"],
        check: check::reaches_all,
        start: |of| Box::new(Sgp::new(of.optimizer, of.parameters)),
    },
    Registration {
        name: "easgd",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Async,
            exchange: Exchange::ParameterServer,
            merge: MergeKind::Elastic,
        },
        claims: Claims {
            servers: 1,
            all_reduced: AllReduced::Nothing,
            rounds: false,
            equal_start: false,
            proves_rows: false,
            work: Work::Leases(|job| job.merge.every),
            deterministic: false,
            ..Claims::LOCAL_ROUNDS
        },
        sections: &["strategy.merge"],
        check: check::elastic_force,
        start: |of| match of.serves {
            Some(_) => {
                let centre = Centre::new(of.job, of.optimizer, of.parameters);
                Box::new(leased::Server::new(of.job, centre, of.job.merge.every))
            }
            None => Box::new(easgd::AsynchronousWorker::new(of.optimizer, of.parameters)),
        },
    },
    Registration {
        name: "easgd-sync",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::ParameterServer,
            merge: MergeKind::Elastic,
        },
        claims: Claims {
            servers: 1,
            all_reduced: AllReduced::Nothing,
            equal_start: false,
            ..Claims::LOCAL_ROUNDS
        },
        sections: &["strategy.merge"],
        check: check::elastic_force,
        start: |of| match of.serves {
            Some(_) => {
                let centre = Centre::new(of.job, of.optimizer, of.parameters);
                Box::new(clocked::Server::new(of.job, centre))
            }
            None => Box::new(easgd::SynchronousWorker::new(of.job, of.optimizer, of.parameters)),
        },
    },
    Registration {
        name: "tree-easgd",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Async,
            exchange: Exchange::Tree,
            merge: MergeKind::Elastic,
        },
        claims: Claims { all_reduced: AllReduced::Nothing, ..Claims::OWN_SPEED },
        sections: &["strategy.merge", "strategy.tree"],
        check: check::tree,
        start: |of| Box::new(TreeEasgd::new(of.optimizer, of.parameters)),
    },
    Registration {
        name: "gossip-learning",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Async,
            exchange: Exchange::Walks,
            merge: MergeKind::None,
        },
        claims: Claims { all_reduced: AllReduced::Nothing, ensemble: true, ..Claims::OWN_SPEED },
        sections: &["strategy.gossip", "strategy.ensemble"],
        check: check::answers_together,
        start: |of| Box::new(GossipLearning::new(of.job, of.optimizer, of.parameters)),
    },
    Registration {
        name: "ensemble",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Async,
            exchange: Exchange::None,
            merge: MergeKind::None,
        },
        claims: Claims {
            all_reduced: AllReduced::Nothing,
            sends_messages: false,
            own_start: true,
            ensemble: true,
            ..Claims::OWN_SPEED
        },
        sections: &["strategy.ensemble"],
        check: check::independent,
        start: |of| Box::new(Ensemble::new(of.job, of.optimizer, of.parameters)),
    },
    Registration {
        name: "sparknet",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Allreduce,
            merge: MergeKind::Mean,
        },
        claims: Claims::LOCAL_ROUNDS,
        sections: &["strategy.merge"],
        check: check::plain_mean,
        start: |of| Box::new(SparkNet::new(of.job, of.optimizer, of.parameters)),
    },
    Registration {
        name: "mpca-sgd",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Allreduce,
            merge: MergeKind::Penalized,
        },
        claims: Claims { meets: true, spreads_later: true, equal_start: false, ..Claims::LOCAL_ROUNDS },
        sections: &["strategy.merge"],
        check: check::penalty,
        start: |of| Box::new(MpcaSgd::new(of.job, of.optimizer, of.parameters)),
    },
    Registration {
        name: "block-momentum",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Allreduce,
            merge: MergeKind::BlockMomentum,
        },
        claims: Claims::LOCAL_ROUNDS,
        sections: &["strategy.merge"],
        check: |_, _| (),
        start: |of| Box::new(BlockMomentum::new(of.job, of.optimizer, of.parameters)),
    },
    Registration {
        name: "diloco",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Allreduce,
            merge: MergeKind::OuterNesterov,
        },
        claims: Claims::LOCAL_ROUNDS,
        sections: &["strategy.merge"],
        check: |_, _| (),
        start: |of| Box::new(DiLoCo::new(of.job, of.optimizer, of.parameters)),
    },
    Registration {
        name: "slowmo",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Allreduce,
            merge: MergeKind::SlowMomentum,
        },
        claims: Claims::LOCAL_ROUNDS,
        sections: &["strategy.merge"],
        check: |_, _| (),
        start: |of| Box::new(SlowMo::new(of.job, of.optimizer, of.parameters)),
    },
    Registration {
        name: "post-local-sgd",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Allreduce,
            merge: MergeKind::PostLocal,
        },
        claims: Claims::LOCAL_ROUNDS,
        sections: &["strategy.merge"],
        check: check::plain_mean,
        start: |of| Box::new(PostLocal::new(of.job, of.optimizer, of.parameters)),
    },
];
