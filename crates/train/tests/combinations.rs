//! Rules of strategies: which dials one has, what it cannot do, and settings of ranks that do not exist.

use thalweg_core::spec::preset;
use thalweg_core::spec::{Job, JobLayers, JobSpec};
use thalweg_core::{Error, Kind, Result};
use thalweg_train::registry;

/// Resolves the text of a file and `--set` assignments.
fn resolve(file: &str, set: &[&str]) -> Result<Job> {
    let mut layers = JobLayers::default();
    layers.add_file("job.toml", file).map_err(Error::job)?;
    for assignment in set {
        layers.add_assignment(assignment).map_err(Error::job)?;
    }
    registry::resolve(layers)
}

fn accepted(file: &str, set: &[&str]) -> JobSpec {
    resolve(file, set).unwrap_or_else(|error| panic!("{file} {set:?}: {error}")).spec
}

/// Asserts that the job is refused with a message that contains all pieces.
fn refused_with(file: &str, set: &[&str], pieces: &[&str]) {
    let error = resolve(file, set).err().unwrap_or_else(|| panic!("accepted: {file} {set:?}"));
    assert_eq!(error.kind, Kind::Job);
    for piece in pieces {
        assert!(error.message.contains(piece), "no {piece:?} in: {}", error.message);
    }
}

#[test]
fn every_preset_has_a_strategy() {
    for preset in preset::all() {
        let spec = accepted("", &[&format!("strategy.preset={}", preset.name)]);
        let strategy = registry::of(&spec);
        let servers = if strategy.claims.shards { spec.servers.count } else { strategy.claims.servers };
        assert_eq!(registry::ranks(&spec), spec.engine.workers + servers);
        assert!(registry::ranks(&spec) == 1 || registry::is_elastic(&spec), "{}", preset.name);
    }
    assert!(!registry::is_elastic(&accepted("", &["fault.elastic=false"])));
    assert!(!registry::is_elastic(&accepted("", &["strategy.exchange.transport=mpi"])));
}

#[test]
fn dials_without_a_strategy_are_refused_with_what_is_needed() {
    let gossip = [
        "job.toml:2: strategy.exchange.kind: no strategy is built for strategy.optimization = \"centralized\"",
        "`gosgd` needs strategy.optimization = \"decentralized\" and strategy.scheduling.kind = \"async\"",
    ];
    refused_with("[strategy.exchange]\nkind = \"gossip\"", &[], &gossip);
    refused_with(
        "",
        &["strategy.optimization=decentralized"],
        &[
            "--set strategy.optimization=decentralized: strategy.optimization",
            "strategy.exchange.kind = \"gossip\"",
        ],
    );
    refused_with(
        "",
        &["strategy.scheduling.kind=async"],
        &["strategy.scheduling.kind: no strategy", "`gosgd` needs"],
    );
    refused_with("", &["strategy.exchange.kind=none"], &["strategy.exchange.kind: `none` is for one worker"]);
    // All problems are reported at once, and each once.
    let message = resolve("", &["strategy.scheduling.kind=async", "train.epochs=0", "engine.slow={7=2.0}"]);
    assert!(message.unwrap_err().message.starts_with("3 errors"));
    let message = resolve("[engine]\nworkers = 3", &["strategy.preset=single"]).unwrap_err().message;
    assert!(message.starts_with("job.toml:2: engine.workers = 3 conflicts"), "{message}");
}

#[test]
fn impossible_settings_of_servers_are_refused() {
    let (server, ssp) = ("strategy.preset=parameter-server", "strategy.scheduling.kind=ssp");
    let sgd = "train.optimizer.kind=sgd";
    for (set, pieces) in [
        (
            &[ssp][..],
            &["strategy.scheduling.kind: no strategy", "`parameter-server-ssp` needs strategy.exchange.kind"]
                [..],
        ),
        (
            &["strategy.scheduling.staleness=2"],
            &["a setting of ssp and essp, but strategy.scheduling.kind is `bsp`"],
        ),
        (
            &[server, "strategy.scheduling.kind=quorum", "strategy.scheduling.quorum=9"],
            &["between 1 and the number of workers"],
        ),
        (
            &[server, "strategy.scheduling.kind=quorum", "strategy.apply=per_push"],
            &["`quorum` waits for the gradients"],
        ),
        (&[server, "strategy.scheduling.kind=async", "strategy.apply=per_clock"], &["`async` has no clocks"]),
        (&[server, "strategy.push=delta", sgd], &["push gradients; use async, ssp, essp or quorum"]),
        (&[server, ssp, "strategy.push=delta", "train.optimizer.kind=adam"], &["state of `adam` of its own"]),
        (&[server, "strategy.scheduling.kind=essp", "strategy.push=gradient"], &["nothing to send ahead"]),
        (&["strategy.apply=per_push"], &["a setting of parameter servers, and `allreduce` is none"]),
        (&[server, "train.sample=0.5"], &["train.sample", "divided by those sampled"]),
        (&["strategy.preset=sparknet", "train.sample=0.5"], &["`sparknet` has no gradient"]),
        (
            &["strategy.preset=gosgd", "strategy.scheduling.epoch_fraction=0.5"],
            &["`gosgd` computes all rows"],
        ),
        (&[server, ssp, "strategy.scheduling.epoch_fraction=0"], &["above 0 and at most 1"]),
        (&[server, "strategy.scheduling.max_age=3"], &["waits for all updates of a clock"]),
        (
            &[
                server,
                "strategy.scheduling.kind=async",
                "strategy.servers.count=2",
                "strategy.scheduling.max_age=3",
            ],
            &["asynchronous servers do not ask each other"],
        ),
        (&[server, ssp, "strategy.servers.count=2", "train.clip.norm=1.0"], &["is 2, but train.clip.norm"]),
        (&[server, ssp, "strategy.scheduling.n_push=2"], &["n_push: is a setting of async"]),
        (&[server, ssp, "strategy.scheduling.late=abandon"], &["late: is a setting of quorum"]),
        (
            &[
                server,
                "strategy.scheduling.kind=async",
                "strategy.scheduling.n_push=2",
                "strategy.scheduling.n_fetch=3",
            ],
            &["must be a multiple of n_push, 2, is 3"],
        ),
        (
            &["strategy.preset=easgd", "strategy.scheduling.n_push=2", "strategy.scheduling.n_fetch=2"],
            &["is a setting of asynchronous parameter servers, and `easgd"],
        ),
        (&[server, "strategy.mitigation.warm_start=3"], &["does not use [strategy.mitigation]"]),
        (
            &["strategy.preset=petuum", "strategy.mitigation.delay_compensation=1.0"],
            &["that the server applies one by one"],
        ),
        (&["strategy.preset=petuum", "strategy.push=gradient"], &["conflicts with preset `petuum`"]),
    ] {
        refused_with("", set, pieces);
    }
    let all = [
        server,
        "strategy.scheduling.kind=quorum",
        "strategy.scheduling.quorum=9",
        "strategy.apply=per_push",
        "train.epochs=0",
    ];
    assert!(resolve("", &all).unwrap_err().message.starts_with("3 errors"), "all at once");
    for kind in ["ssp", "essp", "quorum"] {
        accepted("", &[server, &format!("strategy.scheduling.kind={kind}"), sgd]);
    }
}

#[test]
fn buckets_need_a_gradient_of_all_rows_and_tuning_an_all_reduce() {
    for preset in ["gosgd", "easgd", "sparknet"] {
        let preset = format!("strategy.preset={preset}");
        let bucket = "strategy.exchange.bucket=4MiB";
        refused_with("", &[&preset, bucket], &["strategy.exchange.bucket", "there are no buckets"]);
    }
    let served = "strategy.preset=parameter-server";
    refused_with("", &[served, "strategy.tune=true"], &["strategy.tune", "only an all-reduce"]);
    accepted("", &[served, "strategy.exchange.bucket=tensor"]);
    accepted("", &["strategy.exchange.bucket=tensor", "strategy.tune=true"]);
    refused_with("", &["strategy.exchange.bucket=tensors"], &["\"tensor\"", "such as \"4MiB\""]);
}

#[test]
fn a_progress_thread_needs_messages_to_move() {
    let on = "engine.progress_thread=true";
    for preset in ["gosgd", "dpsgd", "sgp", "adpsgd", "tree-easgd"] {
        accepted("", &[&format!("strategy.preset={preset}"), on]);
    }
    refused_with("", &[on], &["engine.progress_thread", "`allreduce` sends no messages"]);
    let gossip = ["strategy.preset=gosgd", on];
    for (setting, piece) in
        [("engine.kind=sim", "virtual time"), ("strategy.exchange.transport=mpi", "calls to MPI")]
    {
        refused_with("", &[&gossip[..], &[setting]].concat(), &["engine.progress_thread", piece]);
    }
}

#[test]
fn servers_that_cannot_be_are_refused() {
    let (served, two) = ("strategy.preset=parameter-server", "strategy.servers.count=2");
    assert_eq!(registry::ranks(&accepted("[engine]\nworkers = 3", &[served, two])), 5);
    refused_with("", &[two], &["strategy.servers.count", "`allreduce` does not use [strategy.servers]"]);
    refused_with("", &["strategy.preset=easgd", two], &["does not use [strategy.servers]"]);
    refused_with("", &[served, "strategy.servers.count=0"], &["strategy.servers.count: must be between 1"]);
    let norm = "train.clip={norm=1.0}";
    refused_with("", &[served, two, norm], &["strategy.servers.count", "the norm", "use one server"]);
    accepted("", &[served, norm]);
    accepted("", &[served, two, "train.clip={value=1.0}"]);
}

#[test]
fn settings_that_are_not_reproducible_are_refused_by_name() {
    let on = "[train]\nreproducible = true";
    accepted(on, &["strategy.split=speed"]);
    accepted(on, &["strategy.preset=single"]);
    accepted(on, &["strategy.exchange.bucket=whole"]);
    let served = "strategy.preset=parameter-server";
    accepted(on, &[served]);
    refused_with(on, &[served, "strategy.scheduling.kind=async"], &["train.reproducible", "as they arrive"]);
    for (setting, piece) in [
        ("strategy.preset=gosgd", "workers have models of their own"),
        ("strategy.preset=easgd", "models of their own"),
        ("strategy.preset=horovod", "the summation order of `ring` depends on the ranks"),
        ("strategy.tune=true", "strategy.tune = false"),
        ("strategy.exchange.bucket=tensor", "strategy.exchange.bucket = \"auto\""),
        ("strategy.exchange.bucket=4MiB", "strategy.exchange.bucket = \"auto\""),
        ("train.accumulate=2", "train.accumulate = 1"),
        ("engine.threads=2", "engine.threads = 1"),
    ] {
        refused_with(on, &[setting], &["job.toml:2: train.reproducible", piece]);
    }
    for preset in ["gosgd", "parameter-server"] {
        let preset = format!("strategy.preset={preset}");
        refused_with("[strategy]\nsplit = \"speed\"", &[&preset], &["strategy.split", "use `even`"]);
    }
}

#[test]
fn a_fault_of_a_rank_that_does_not_exist_is_refused() {
    let fault = |rank: usize| format!("fault.inject=[{{ step = 4, rank = {rank}, kind = \"kill\" }}]");
    accepted("", &[&fault(1)]);
    let error = resolve("", &[&fault(2)]).unwrap_err();
    assert!(error.message.contains("there is no rank 2: ranks are 0 to 1"), "{error}");
    // Servers are ranks, too.
    accepted("", &[&fault(2), "strategy.preset=parameter-server"]);
    refused_with("[engine]\nslow = { 2 = 3.0 }", &[], &["job.toml:2", "engine.slow", "no worker 2"]);
    // Slow ones are workers: a server computes no gradients.
    let served = "strategy.preset=parameter-server";
    refused_with("[engine]\nslow = { 2 = 3.0 }", &[served], &["engine.slow", "no worker 2"]);
    let links = "[engine.network]\nlinks = [{ from = 0, to = 3, latency = \"1s\" }]";
    refused_with(
        links,
        &[],
        &["job.toml:2", "engine.network.links", "there is no rank 3: there are 2 ranks"],
    );
}

#[test]
fn an_alpha_adapts_where_workers_merge_one_by_one() {
    let adaptive = "strategy.merge.adaptive_alpha=true";
    accepted("", &["strategy.preset=easgd", adaptive]);
    let together = ["strategy.preset=easgd", "strategy.scheduling.kind=bsp", adaptive];
    refused_with("", &together, &["strategy.merge.adaptive_alpha", "one alpha"]);
}

#[test]
fn pairs_are_averaged_between_two_sides() {
    let adpsgd = ["strategy.preset=adpsgd", "engine.workers=4"];
    accepted("", &[&adpsgd[..], &["strategy.neighbours.graph=complete"]].concat());
    for setting in ["strategy.neighbours.graph=torus", "strategy.neighbours.mix=after"] {
        let key = setting.split_once('=').unwrap().0;
        refused_with("", &[&adpsgd[..], &[setting]].concat(), &[key, "at their own speed"]);
    }
}

#[test]
fn a_tree_deeper_than_the_world_is_refused() {
    let tree = ["strategy.preset=tree-easgd", "engine.workers=4"];
    accepted("", &[&tree[..], &["strategy.tree.depth=3"]].concat());
    for (setting, key, piece) in [
        ("strategy.tree.depth=4", "strategy.tree.depth", "needs 5 workers, but there are 4"),
        ("strategy.tree.depth=1", "strategy.tree.depth", "need 2 levels"),
        ("strategy.merge.alpha=0.6", "strategy.merge.alpha", "at most 1/2"),
    ] {
        refused_with("", &[&tree[..], &[setting]].concat(), &[key, piece]);
    }
    let penalized = |set: &[&str], pieces: &[&str]| {
        refused_with(
            "",
            &[&["strategy.preset=mpca-sgd", "train.optimizer={kind='sgd', lr=0.3}"], set].concat(),
            pieces,
        );
    };
    accepted("", &["strategy.preset=mpca-sgd", "train.optimizer={kind='sgd', lr=0.3}"]);
    penalized(&["strategy.merge.penalty=0.2"], &["strategy.merge.penalty", "swings up above 0.33"]);
    penalized(&["strategy.merge.penalty=0"], &["strategy.merge.penalty", "above 0"]);
    penalized(&["strategy.merge.extrapolation=1.5"], &["strategy.merge.extrapolation", "at most 1"]);
    penalized(&["strategy.merge.rate=0.5"], &["strategy.merge.rate", "drop this key"]);
    penalized(&["strategy.merge.optimizer_state=reset"], &["models are not merged"]);
    refused_with("", &["strategy.preset=sparknet", "strategy.merge.penalty=0.3"], &["drop them"]);
    refused_with(
        "",
        &["strategy.preset=gosgd", "strategy.gossip.cache=3"],
        &["strategy.gossip.cache", "walks"],
    );
    refused_with("", &["strategy.preset=ensemble", "strategy.ensemble.combine=merge"], &["is no model"]);
    accepted("", &["strategy.preset=sparknet", "strategy.merge.adaptive_every=true"]);
    for preset in ["easgd", "tree-easgd"] {
        let preset = format!("strategy.preset={preset}");
        let adapts = "strategy.merge.adaptive_every";
        refused_with("", &[&preset, "strategy.merge.adaptive_every=true"], &[adapts, "all merge together"]);
    }
    refused_with("", &["strategy.tree.depth=2"], &["does not use [strategy.tree]"]);
}

#[test]
fn what_is_pushed_must_reach_all_workers() {
    let edges = |list: &str| format!("strategy.neighbours.graph={list}");
    let sgp = ["strategy.preset=sgp", "engine.workers=3"];
    accepted("", &[&sgp[..], &[&*edges("[[0, 1], [1, 2], [2, 0]]")]].concat());
    let line = edges("[[0, 1], [1, 2]]");
    let pieces = ["strategy.neighbours.graph", "what worker 1 pushes does not reach all others"];
    refused_with("", &[&sgp[..], &[&*line]].concat(), &pieces);
}

#[test]
fn merges_without_a_strategy_and_settings_of_another_family_are_refused() {
    for kind in ["mean", "block-momentum", "outer-nesterov"] {
        let pieces =
            ["strategy.merge.kind: no strategy is built for", &format!("strategy.merge.kind = \"{kind}\"")];
        refused_with("", &[&format!("strategy.merge.kind={kind}")], &pieces);
    }
    for setting in ["every=5", "rate=0.5", "momentum=0.9"] {
        let key = format!("strategy.merge.{}", setting.split_once('=').unwrap().0);
        let pieces = [&*key, "the strategy `allreduce` does not use [strategy.merge]; drop this key"];
        refused_with("", &[&format!("strategy.merge.{setting}")], &pieces);
    }
    let probability = "strategy.gossip.probability=0.5";
    refused_with("", &[probability], &["the strategy `allreduce` does not use [strategy.gossip]"]);
    accepted("", &[probability, "strategy.preset=gosgd"]);
}

/// Rates at which workers and centre pass each other, or the centre the mean of the workers.
#[test]
fn elastic_averaging_is_refused_where_it_does_not_converge() {
    let easgd = |set: &[&str], pieces: &[&str]| {
        let all = [&["strategy.preset=easgd", "engine.workers=4"], set].concat();
        match pieces {
            [] => drop(accepted("", &all)),
            pieces => refused_with("", &all, pieces),
        }
    };
    let (alpha, beta) = ("strategy.merge.alpha", "strategy.merge.beta");
    // Asynchronous: 0 < beta <= alpha <= 1/2.
    for set in
        [&[][..], &["strategy.merge.alpha=0.5"], &["strategy.merge.alpha=0.5", "strategy.merge.beta=0.01"]]
    {
        easgd(set, &[]);
    }
    for value in ["0", "-0.1", "0.51", "1e-60"] {
        easgd(&[&format!("{alpha}={value}")], &[alpha, "worker and centre pass each other"]);
    }
    for value in ["0.3", "0", "-0.1", "1e-60"] {
        easgd(
            &[&format!("{beta}={value}")],
            &[beta, "at most alpha, which is 0.225", "Langer et al., equation 1"],
        );
    }
    // Synchronous: beta = alpha <= 1/2, n alpha <= 1.
    let bsp = "strategy.scheduling.kind=bsp";
    easgd(&[bsp], &[]);
    easgd(&[bsp, "strategy.merge.alpha=0.25", "strategy.merge.beta=0.25"], &[]);
    easgd(&[bsp, "strategy.merge.beta=0.1"], &[beta, "synchronous merges are symmetric"]);
    easgd(&[bsp, "strategy.merge.alpha=0.26"], &[alpha, "4 workers at 0.26", "use at most 1/4"]);
    easgd(&[bsp, "strategy.merge.alpha=0.6"], &[alpha, "worker and centre pass each other"]);
    // tau, and the rates of other merges.
    for scheduling in [bsp, "strategy.scheduling.kind=async"] {
        easgd(&[scheduling, "strategy.merge.every=0"], &["strategy.merge.every", "at least 1"]);
        easgd(&[scheduling, "strategy.merge.rate=0.5"], &["strategy.merge.rate", "drop this key"]);
    }
    refused_with(
        "",
        &["strategy.preset=sparknet", "strategy.merge.alpha=0.1"],
        &["rates of elastic averaging"],
    );
}
