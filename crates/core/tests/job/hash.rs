//! Every key of a job changes its hash: ranks with different jobs do not train together.

use crate::accepted;
use std::collections::HashSet;
use thalweg_core::JobSpec;

#[test]
fn the_hash_changes_with_every_key() {
    let changed = [
        "data.source=a.csv",
        "data.label=x",
        "data.header=true",
        "data.delimiter=;",
        "data.categorical=['a']",
        "data.ignore=['a']",
        "data.missing=mean",
        "data.task=regression",
        "data.scale=none",
        "data.window=8",
        "data.validation=0.3",
        "data.memory=1MiB",
        "data.cache_limit=1GiB",
        "model.layers=['dense auto']",
        "model.zoo=lenet",
        "model.onnx=net.onnx",
        "model.loss=hinge",
        "model.batchnorm=local",
        "model.initializer=he-normal",
        "train.global_batch=65",
        "train.local_batch=40",
        "train.accumulate=2",
        "train.reproducible=true",
        "train.l1=0.1",
        "train.l2=0.1",
        "train.epochs=21",
        "train.max_steps=5",
        "train.seed=8",
        "train.optimizer.kind=sgd",
        "train.optimizer.lr=0.1",
        "train.optimizer.beta1=0.8",
        "train.optimizer.beta2=0.8",
        "train.optimizer.epsilon=1e-7",
        "train.optimizer.weight_decay=0.1",
        "train.schedule.kind=cosine",
        "train.schedule.warmup_steps=5",
        "train.schedule.scale_with_batch=32",
        "train.clip.value=0.5",
        "train.clip.norm=0.5",
        "train.target.accuracy=0.9",
        "train.target.loss=0.9",
        "strategy.preset=horovod",
        "strategy.split=speed",
        "strategy.tune=true",
        "strategy.parallelism.data=2",
        "strategy.exchange.algorithm=ring",
        "strategy.exchange.bucket=4MiB",
        "strategy.exchange.transport=tcp",
        "strategy.gossip.probability=0.2",
        "strategy.merge.kind=mean",
        "strategy.merge.every=5",
        "strategy.merge.rate=0.7",
        "strategy.merge.momentum=0.9",
        "strategy.neighbours.graph=torus",
        "strategy.neighbours.mix=after",
        "fault.step_deadline=31s",
        "fault.elastic=false",
        "fault.min_workers=2",
        "fault.max_workers=9",
        "fault.join_piece=4MiB",
        "fault.respawn=true",
        "fault.inject=[{step=1,rank=0,kind=\"kill\"}]",
        "fault.join_deadline=31s",
        "fault.prepare_deadline=31s",
        "fault.checkpoint_every=5",
        "fault.checkpoint_keep=5",
        "engine.workers=3",
        "engine.threads=2",
        "engine.port=5",
        "engine.slow={1=2.0}",
        "engine.pace=5ms",
        "engine.jitter=0.1",
        "engine.network.latency=1ms",
        "engine.progress_thread=true",
        "engine.network.variation=0.5",
        "engine.network.bandwidth=2GiB",
        "engine.network.links=[{from=0,to=1,latency='1ms'}]",
        "engine.network.speed=2e10",
    ];
    let mut hashes = HashSet::from([JobSpec::default().hash()]);
    for assignment in changed {
        assert!(hashes.insert(accepted("", &[assignment]).hash()), "{assignment} does not change the hash");
    }
    let tested = |path: &str| changed.iter().any(|assignment| assignment.starts_with(&format!("{path}=")));
    // The cache folder is not hashed; the next keys need another key; the last have one valid value by themselves.
    let untested = [
        "data.cache",
        "train.optimizer.momentum",
        "train.optimizer.trust",
        "train.schedule.step_every",
        "train.schedule.gamma",
        "train.schedule.final_lr",
        "train.schedule.steps",
        "strategy.exchange.first_bucket",
        "strategy.merge.alpha",
        "strategy.merge.beta",
        "strategy.optimization",
        "strategy.scheduling.kind",
        "strategy.exchange.kind",
        "engine.kind",
    ];
    for key in JobSpec::keys() {
        assert!(tested(&key.path) || untested.contains(&key.path.as_str()), "{} is not tested", key.path);
    }
}
