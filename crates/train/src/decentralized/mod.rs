//! Decentralized optimization: every worker has parameters and an optimizer state of its own.

pub mod adpsgd;
pub mod block_momentum;
pub mod diloco;
pub mod dpsgd;
pub mod easgd;
pub mod elastic_rate;
pub mod ensemble;
pub mod gosgd;
pub mod gossip_learning;
pub mod local_round;
pub mod meeting;
pub mod mixing;
pub mod model_message;
pub mod mpca;
pub mod post_local;
pub mod push_graph;
pub mod sgp;
pub mod slowmo;
pub mod sparknet;
pub mod tree_easgd;
pub mod worker_tree;
