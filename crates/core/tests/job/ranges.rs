//! Ranges of single values, and keys that belong to one kind of optimizer or schedule.

use crate::{accepted, refused_with};
use thalweg_core::spec::JobSpec;
use thalweg_core::spec::optimizer::UpdateRule;

#[test]
fn values_out_of_range_are_refused() {
    for (assignment, reason) in [
        ("engine.workers=0", "between 1 and 4096"),
        ("engine.workers=5000", "between 1 and 4096"),
        ("engine.threads=0", "between 1 and 64"),
        ("engine.threads=65", "between 1 and 64"),
        ("engine.port=70000", "at most 65535"),
        ("train.global_batch=0", "at least 1"),
        ("train.local_batch=0", "at least 1"),
        ("train.epochs=0", "at least 1"),
        ("train.max_steps=0", "at least 1"),
        ("train.sample=0", "above 0 and at most 1"),
        ("train.sample=1.5", "above 0 and at most 1"),
        ("data.window=0", "at least 1"),
        ("model.layers=[]", "at least one layer"),
        ("data.validation=1.0", "below 1"),
        ("data.delimiter=ab", "expected \"auto\" or tab, space or one character"),
        ("data.delimiter=x", "no letter"),
        ("strategy.parallelism.data=3", "there are 2 workers"),
        ("strategy.gossip.probability=0", "above 0 and at most 1"),
        ("strategy.gossip.probability=1.5", "above 0 and at most 1"),
        ("strategy.merge.every=0", "at least 1"),
        ("strategy.merge.rate=0", "above 0"),
        ("strategy.merge.rate=1e39", "finite in single precision"),
        ("strategy.merge.momentum=1", "below 1"),
        ("strategy.merge.adaptive_alpha=true", "elastic"),
        ("strategy.tree.children=0", "at least 1"),
        ("strategy.tree.down=0", "at least 1"),
        ("strategy.merge.start=1.5", "at most 1"),
        ("strategy.merge.start=0.25", "post-local"),
        ("strategy.merge.momentum=-0.1", "at least 0"),
        ("strategy.neighbours.graph=[[0, 2]]", "has a worker 2, but there are 2 workers"),
        ("strategy.neighbours.graph=[[1, 1]]", "joins a worker to itself"),
        ("fault.step_deadline=0s", "above 0"),
        ("fault.prepare_deadline=0s", "above 0"),
        ("fault.step_deadline=0.0001ms", "above 0"),
        ("fault.join_deadline=0s", "above 0"),
        ("fault.checkpoint_keep=0", "at least 1"),
        ("train.target.accuracy=1.5", "out of range"),
        ("train.accumulate=0", "at least 1"),
        ("train.l1=-0.1", "at least 0"),
        ("train.l2=-0.1", "at least 0"),
        ("train.l2=1e39", "finite in single precision"),
        ("train.optimizer.lr=0", "above 0"),
        ("train.optimizer.lr=-1", "above 0"),
        ("train.optimizer.lr=1e39", "finite in single precision"),
        ("train.optimizer.beta1=1.0", "below 1"),
        ("train.optimizer.beta2=0.99999999999", "below 1"),
        ("train.optimizer.epsilon=0.0", "above 0"),
        ("train.optimizer.epsilon=1e-60", "above 0"),
        ("train.optimizer.weight_decay=-0.1", "at least 0"),
        ("train.clip.value=0", "above 0"),
        ("train.clip.norm=-1", "above 0"),
        ("train.clip.norm=1e39", "finite in single precision"),
        ("train.schedule.scale_with_batch=0", "at least 1"),
    ] {
        let (key, _) = assignment.split_once('=').unwrap();
        refused_with("", &[assignment], &[key, reason, "--set"]);
    }
}

#[test]
fn values_out_of_range_of_one_kind_are_refused() {
    for (kind, assignment, reason) in [
        ("optimizer.kind=momentum", "train.optimizer.momentum=1", "below 1"),
        ("optimizer.kind=momentum", "train.optimizer.momentum=-1", "above -1"),
        ("optimizer.kind=nesterov", "train.optimizer.momentum=-0.1", "at least 0"),
        ("optimizer.kind=lars", "train.optimizer.trust=0", "above 0"),
        ("optimizer.kind=lamb", "train.optimizer.epsilon=0", "above 0"),
        ("optimizer.kind=rmsprop", "train.optimizer.beta2=1", "below 1"),
        ("schedule={kind='step', gamma=0.5}", "train.schedule.step_every=0", "at least 1"),
        ("schedule={kind='step', step_every=5}", "train.schedule.gamma=0", "above 0"),
        ("schedule={kind='step', step_every=5}", "train.schedule.gamma=1.5", "at most 1"),
        ("schedule.kind=cosine", "train.schedule.final_lr=-1", "at least 0"),
        ("schedule.kind=cosine", "train.schedule.steps=0", "at least 1"),
        ("schedule={kind='cosine', warmup_steps=9}", "train.schedule.steps=9", "above warmup_steps (9)"),
        ("optimizer.lr=3e38", "train.schedule.scale_with_batch=1", "makes the learning rate"),
    ] {
        let (key, _) = assignment.split_once('=').unwrap();
        refused_with("", &[&format!("train.{kind}"), assignment], &[key, reason, "--set"]);
    }
    let missing = ["train.schedule.kind", "`step` needs train.schedule.step_every"];
    refused_with("[train.schedule]\nkind = 'step'", &[], &missing);
}

#[test]
fn hyperparameters_of_another_kind_are_refused() {
    let sgd = "train.optimizer.kind=sgd";
    let moments = "belongs to `adam`, `adamw` or `lamb`, but the kind is `sgd`";
    refused_with("", &[sgd, "train.optimizer.beta1=0.8"], &["train.optimizer.beta1", moments]);
    let momentum = "belongs to `momentum`, `nesterov` or `lars`, but the kind is `adam`";
    refused_with("", &["train.optimizer.momentum=0.8"], &["train.optimizer.momentum", momentum]);
    let trust = ["train.optimizer.trust", "belongs to `lars`, but the kind is `lamb`"];
    refused_with("", &["train.optimizer={kind='lamb', trust=0.1}"], &trust);
    for (assignment, kind) in [("step_every=3", "step"), ("gamma=0.5", "step"), ("final_lr=0.1", "cosine")] {
        let belongs = format!("belongs to `{kind}`, but the kind is `constant`");
        refused_with("", &[&format!("train.schedule.{assignment}")], &["train.schedule.", &belongs]);
    }
    refused_with(
        "",
        &["train.schedule={kind='step', step_every=3, steps=9}"],
        &["schedule.steps", "`cosine`"],
    );
    refused_with("", &["train.clip=0.5"], &["`train.clip` is a group of keys", "0.5"]);
}

#[test]
fn every_update_rule_has_the_defaults_of_its_paper() {
    let (lr, momentum, beta1, beta2, epsilon) = (1e-3, 0.9, 0.9, 0.999, 1e-8);
    for (kind, rule) in [
        ("sgd", UpdateRule::Sgd { lr }),
        ("momentum", UpdateRule::Momentum { lr, momentum }),
        ("nesterov", UpdateRule::Nesterov { lr, momentum }),
        ("adagrad", UpdateRule::Adagrad { lr, epsilon: 1e-10 }),
        ("rmsprop", UpdateRule::Rmsprop { lr, beta2: 0.99, epsilon }),
        ("adam", UpdateRule::Adam { lr, beta1, beta2, epsilon }),
        ("adamw", UpdateRule::Adamw { lr, beta1, beta2, epsilon, weight_decay: 0.01 }),
        ("lars", UpdateRule::Lars { lr, momentum, weight_decay: 0.0, trust: 1e-3 }),
        ("lamb", UpdateRule::Lamb { lr, beta1, beta2, epsilon: 1e-6, weight_decay: 0.01 }),
    ] {
        let spec = accepted("", &[&format!("train.optimizer.kind={kind}")]).optimizer;
        assert_eq!((spec.rule(), spec.rule().lr(), spec.coupled_decay()), (rule, lr, 0.0));
        let decays =
            accepted("", &[&format!("train.optimizer={{kind='{kind}', weight_decay=0.5}}")]).optimizer;
        let apart = matches!(kind, "adamw" | "lars" | "lamb");
        assert_eq!(decays.coupled_decay(), if apart { 0.0 } else { 0.5 }, "{kind}");
        assert_eq!(decays.rule() == rule, !apart, "{kind}");
    }
    let spec = accepted("", &["train.optimizer={kind='adam', beta2=0.99}"]);
    assert_eq!(spec.optimizer.rule(), UpdateRule::Adam { lr, beta1, beta2: 0.99, epsilon });
}

#[test]
fn rank_factors_are_a_table() {
    let spec = accepted("[engine]\nworkers = 4\nslow = { 2 = 3.0 }\npace = \"20ms\"", &["engine.slow.1=2"]);
    assert_eq!([0, 1, 2, 3].map(|rank| spec.engine.slow.of(rank)), [1.0, 2.0, 3.0, 1.0]);
    assert_eq!(accepted(&spec.to_toml(), &[]), spec, "{}", spec.to_toml());
    assert_eq!(accepted("", &["engine.slow={}"]), JobSpec::default());
    refused_with("", &["engine.slow={1=0.5}"], &["engine.slow", "rank 1", "between 1 and"]);
    refused_with("", &["engine.slow={fast=2}"], &["engine.slow", "{ 2 = 3.0 }", "fast = 2"]);
    refused_with("", &["engine.slow=3"], &["engine.slow", "{ 2 = 3.0 }", "got 3"]);
    refused_with("", &["engine.pace=0s"], &["engine.pace", "above 0"]);
    refused_with("", &["engine.jitter=-1"], &["engine.jitter", "between 0 and 1000"]);
    refused_with("", &["engine.jitter_kind=normal"], &["engine.jitter_kind", "uniform, exponential"]);
    let stragglers = "engine.stragglers={ probability = 1.5, factor = 0.5 }";
    refused_with("", &[stragglers], &["probability: must be between 0 and 1", "factor: must be between 1"]);
}
