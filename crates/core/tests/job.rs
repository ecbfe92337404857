//! The job as its users meet it: what is accepted, what is refused and in which words.

use std::collections::HashSet;
use std::time::Duration;
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::optimizer::Rule;
use thalweg_core::spec::setting::{Auto, ColumnRef, Held};
use thalweg_core::spec::strategy::{Algorithm, Exchange};
use thalweg_core::spec::{Job, JobSpec, Layers, preset};
use thalweg_core::{Kind, Result};

/// A job from the text of a file and what stands behind `--set`.
fn resolve(file: &str, set: &[&str]) -> Result<Job> {
    let mut layers = Layers::default();
    layers.add_file("job.toml", file).map_err(thalweg_core::Error::job)?;
    for assignment in set {
        layers.add_assignment(assignment).map_err(thalweg_core::Error::job)?;
    }
    Job::resolve(layers)
}

fn accepted(file: &str, set: &[&str]) -> JobSpec {
    resolve(file, set).unwrap_or_else(|error| panic!("{file} {set:?}: {error}")).spec
}

fn refused(file: &str, set: &[&str]) -> String {
    match resolve(file, set) {
        Ok(_) => panic!("accepted: {file} {set:?}"),
        Err(error) => {
            assert_eq!(error.kind, Kind::Job);
            error.message
        }
    }
}

#[test]
fn buckets_and_tuning_are_an_all_reduces() {
    for (preset, set) in
        [("gosgd", "strategy.exchange.bucket=4MiB"), ("parameter-server", "strategy.tune=true")]
    {
        let preset = format!("strategy.preset={preset}");
        refused_with("", &[&preset, set], &[set.split_once('=').unwrap().0, "only an all-reduce"]);
    }
    accepted("", &["strategy.exchange.bucket=tensor", "strategy.tune=true"]);
    refused_with("", &["strategy.exchange.bucket=tensors"], &["\"tensor\"", "such as \"4MiB\""]);
}

/// Refused, with each of the pieces in the message.
fn refused_with(file: &str, set: &[&str], pieces: &[&str]) {
    let message = refused(file, set);
    for piece in pieces {
        assert!(message.contains(piece), "no {piece:?} in: {message}");
    }
}

#[test]
fn an_empty_job_is_the_default_one() {
    let spec = accepted("", &[]);
    assert_eq!(spec, JobSpec::default());
    assert_eq!(spec.data.source, "builtin:digits");
    assert_eq!(spec.engine.workers, 2);
    assert_eq!(spec.strategy.preset, "allreduce");
    assert!(preset::find(&spec.strategy.preset).is_some());
    assert_eq!(accepted("format = 1\n[train]\n[engine]\n", &["train.optimizer={}"]), spec);
}

#[test]
fn unknown_names_are_answered_with_the_nearest() {
    refused_with("[train]\nepoch = 3", &[], &["job.toml:2", "`epoch`", "did you mean `epochs`"]);
    refused_with("[trian]\nepochs = 3", &[], &["unknown section `trian`", "did you mean `train`"]);
    refused_with("[trian]", &[], &["job.toml:1", "unknown section `trian`", "did you mean `train`"]);
    refused_with("", &["enigne.workers=2"], &["--set enigne.workers=2", "did you mean `engine`"]);
    refused_with("[train]\nworkers = 3", &[], &["did you mean `engine.workers`"]);
    refused_with("epochs = 3", &[], &["did you mean `train.epochs`"]);
    refused_with("[train.optimiser]\nlr = 1", &[], &["did you mean `train.optimizer.lr`"]);
    refused_with("[train]\noptimizer = { rate = 1 }", &[], &["`rate`", "[train.optimizer]"]);
    refused_with("[data]\nscale = \"minimax\"", &[], &["data.scale", "did you mean `minmax`"]);
    refused_with("", &["strategy.preset=horovd"], &["unknown preset `horovd`", "did you mean `horovod`"]);
    refused_with("", &["strategy.preset=zzzzzzzzz"], &["known are", "allreduce", "pytorch-ddp"]);
    refused_with("", &["data.task=zzzzzzzzzzzzzz"], &["known are auto, classification, regression"]);
}

#[test]
fn a_value_of_the_wrong_kind_is_answered_with_what_was_expected() {
    refused_with("[train]\nepochs = \"three\"", &[], &["train.epochs", "a whole number", "\"three\""]);
    refused_with("[train]\nepochs = 2.5", &[], &["a whole number", "2.5"]);
    refused_with("[train]\nepochs = -1", &[], &["a whole number, 0 or more", "-1"]);
    refused_with(
        "[train]\nepochs = 99999999999999999999",
        &[],
        &["a whole number", "100000000000000000000.0"],
    );
    refused_with("[train.epochs]", &[], &["train.epochs", "a whole number", "a table"]);
    refused_with("[train]\noptimizer = \"sgd\"", &[], &["`train.optimizer` is a group of keys", "\"sgd\""]);
    refused_with("[fault]\nstep_deadline = 30", &[], &["a time such as", "30"]);
    refused_with("[data]\nmemory = \"2 elephants\"", &[], &["a size such as"]);
    refused_with("[model]\nlayers = [\"dense 3\", 4]", &[], &["a list of texts"]);
    refused_with("[train.optimizer]\nlr = nan", &[], &["a number"]);
    refused_with("", &["train.epochs"], &["--set train.epochs", "expected section.key=value"]);
}

#[test]
fn values_out_of_range_are_refused() {
    for (assignment, reason) in [
        ("engine.workers=0", "between 1 and 4096"),
        ("engine.workers=5000", "between 1 and 4096"),
        ("engine.threads=0", "between 1 and 64"),
        ("engine.threads=65", "between 1 and 64"),
        ("engine.port=70000", "at most 65535"),
        ("train.global_batch=0", "at least 1"),
        ("train.epochs=0", "at least 1"),
        ("train.max_steps=0", "at least 1"),
        ("data.window=0", "at least 1"),
        ("model.layers=[]", "at least one layer"),
        ("data.validation=1.0", "below 1"),
        ("data.delimiter=ab", "expected \"auto\" or tab, space or one character"),
        ("data.delimiter=x", "no letter"),
        ("strategy.parallelism.data=3", "there are 2 workers"),
        ("strategy.exchange.kind=none", "for one worker"),
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
fn all_complaints_come_at_once_with_their_lines() {
    let file = "[train]\nepoch = 3\nglobal_batch = 0\n\n[engine]\nworkers = \"two\"\n";
    let message = refused(file, &["data.scale=huge"]);
    assert!(message.starts_with("4 things are wrong"), "{message}");
    assert_eq!(message.lines().count(), 5, "{message}");
    for piece in ["job.toml:2:", "job.toml:3:", "job.toml:6:", "--set data.scale=huge:"] {
        assert!(message.contains(piece), "no {piece} in {message}");
    }
}

#[test]
fn a_file_that_is_no_toml_is_refused_with_its_line() {
    refused_with("[train]\nepochs = = 3\n", &[], &["job.toml:2"]);
    refused_with("[train]\nepochs = 3\nepochs = 4\n", &[], &["job.toml:3", "duplicate"]);
}

#[test]
fn only_this_format_is_understood() {
    assert_eq!(accepted("format = 1", &[]), JobSpec::default());
    refused_with("format = 2", &[], &["job.toml:1", "format 2", "this is format 1"]);
}

#[test]
fn numbers_are_read_in_every_notation() {
    assert_eq!(accepted("[train]\nseed = 0x10\nepochs = 1_000\n", &[]).train.seed, 16);
    assert_eq!(accepted("[train]\nseed = 0b11\n", &[]).train.seed, 3);
    assert_eq!(accepted("", &["train.seed=0x10"]).train.seed, 16);
    assert_eq!(accepted("[train.optimizer]\nlr = 1\n", &[]).optimizer.lr, 1.0);
    assert_eq!(accepted("", &["train.optimizer.lr=5e-4"]).optimizer.lr, 5e-4);
}

#[test]
fn set_takes_numbers_texts_lists_and_tables() {
    let spec = accepted(
        "[train]\nepochs = 9\n",
        &[
            "train.epochs=3",
            "data.source=rows of 2024.csv",
            "data.label=quality",
            "data.delimiter=;",
            "data.validation = other.csv",
            "model.layers=[\"dense 64 tanh\", \"dense auto\"]",
            "train.optimizer={ kind = \"momentum\", lr = 0.1 }",
            "fault.join_deadline=1m",
        ],
    );
    assert_eq!(spec.train.epochs, 3);
    assert_eq!(spec.data.source, "rows of 2024.csv");
    assert_eq!(spec.data.label, Some(ColumnRef::Name("quality".into())));
    assert_eq!(spec.data.delimiter, Auto::Is(Delimiter::Byte(b';')));
    for tab in ["tab", "\\t", "\"\\t\""] {
        let spec = accepted("", &[&format!("data.delimiter={tab}")]);
        assert_eq!(spec.data.delimiter, Auto::Is(Delimiter::Byte(b'\t')), "{tab:?}");
        assert!(spec.to_toml().contains("delimiter = \"tab\""));
    }
    assert_eq!(spec.data.validation, Some(Held::Source("other.csv".into())));
    assert_eq!(spec.model.layers, ["dense 64 tanh", "dense auto"]);
    assert_eq!(spec.optimizer.rule(), Rule::Momentum { lr: 0.1, momentum: 0.9 });
    assert_eq!(spec.fault.join_deadline, Auto::Is(Duration::from_secs(60)));
    assert_eq!(accepted("", &["data.label=-2"]).data.label, Some(ColumnRef::Index(-2)));
    assert_eq!(accepted("", &["data.source=a=b\nformat=2"]).data.source, "a=b\nformat=2");
    assert_eq!(accepted("", &["data.source=\"quoted\""]).data.source, "quoted");
}

#[test]
fn the_last_word_counts_and_is_named() {
    let job = resolve("[train]\nepochs = 9\nseed = 1\n", &["train.epochs=3", "train.epochs=4"]).unwrap();
    assert_eq!(job.spec.train.epochs, 4);
    let origin = |key: &str| job.explain().into_iter().find(|line| line.key == key).unwrap().origin;
    assert_eq!(origin("train.epochs"), "--set train.epochs=4");
    assert_eq!(origin("train.seed"), "job.toml:3");
    assert_eq!(origin("train.global_batch"), "default");
    assert_eq!(job.explain().len(), JobSpec::keys().len());
}

#[test]
fn a_preset_overrules_defaults_and_nothing_else() {
    let job = resolve("", &["strategy.preset=single"]).unwrap();
    assert_eq!((job.spec.engine.workers, job.spec.exchange.kind), (1, Exchange::None));
    assert_eq!(job.layers.origin("engine.workers").to_string(), "preset single");

    let conflict = ["engine.workers = 3", "conflicts with preset `single`", "sets 1", "job.toml:2"];
    refused_with("[engine]\nworkers = 3\n", &["strategy.preset=single"], &conflict);
    let conflict = ["strategy.exchange.algorithm = \"auto\"", "preset `horovod`", "sets \"ring\""];
    refused_with("[strategy]\npreset = \"horovod\"", &["strategy.exchange.algorithm=auto"], &conflict);

    assert_eq!(accepted("[engine]\nworkers = 1\n", &["strategy.preset=single"]).engine.workers, 1);
    assert_eq!(accepted("[engine]\nworkers = 3\n", &["strategy.preset=horovod"]).engine.workers, 3);
}

#[test]
fn an_all_reduce_of_the_transport_needs_one_that_has_it() {
    let native = "strategy.exchange.algorithm=native";
    refused_with("", &[native], &["`native`", "`auto` has none", "transport = \"mpi\""]);
    refused_with("", &[native, "strategy.exchange.transport=tcp"], &["`tcp` has none"]);
    assert_eq!(
        accepted("", &[native, "strategy.exchange.transport=mpi"]).exchange.algorithm,
        Algorithm::Native
    );
}

#[test]
fn without_an_explicit_preset_the_dials_speak_for_themselves() {
    let spec = accepted("", &["strategy.exchange.algorithm=ring"]);
    assert_eq!(spec.exchange.algorithm, Algorithm::Ring);
    let spec = accepted("", &["strategy.exchange.kind=none", "engine.workers=1"]);
    assert_eq!(spec.exchange.kind, Exchange::None);

    // Written down, such a job does not claim to be a preset that it is not.
    assert!(!spec.to_toml().contains("preset"));
    assert_eq!(accepted(&spec.to_toml(), &[]), spec);
    assert!(JobSpec::default().to_toml().contains("preset = \"allreduce\""));
}

#[test]
fn every_preset_is_a_job() {
    for preset in preset::all() {
        let spec = accepted("", &[&format!("strategy.preset={}", preset.name)]);
        let values = spec.values();
        for (key, value) in preset.dials {
            let (_, found) = values.iter().find(|(path, _)| path == key).unwrap_or_else(|| panic!("{key}"));
            assert_eq!(found.to_string().trim_matches('"'), *value, "{}: {key}", preset.name);
        }
    }
}

#[test]
fn the_numbers_of_another_kind_are_refused() {
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
fn every_rule_has_the_numbers_of_its_paper_unless_told_otherwise() {
    let (lr, momentum, beta1, beta2, epsilon) = (1e-3, 0.9, 0.9, 0.999, 1e-8);
    for (kind, rule) in [
        ("sgd", Rule::Sgd { lr }),
        ("momentum", Rule::Momentum { lr, momentum }),
        ("nesterov", Rule::Nesterov { lr, momentum }),
        ("adagrad", Rule::Adagrad { lr, epsilon: 1e-10 }),
        ("rmsprop", Rule::Rmsprop { lr, beta2: 0.99, epsilon }),
        ("adam", Rule::Adam { lr, beta1, beta2, epsilon }),
        ("adamw", Rule::Adamw { lr, beta1, beta2, epsilon, weight_decay: 0.01 }),
        ("lars", Rule::Lars { lr, momentum, weight_decay: 0.0, trust: 1e-3 }),
        ("lamb", Rule::Lamb { lr, beta1, beta2, epsilon: 1e-6, weight_decay: 0.01 }),
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
    assert_eq!(spec.optimizer.rule(), Rule::Adam { lr, beta1, beta2: 0.99, epsilon });
}

#[test]
fn every_key_has_a_meaning_and_its_default_is_a_value_it_takes() {
    let mut seen = HashSet::new();
    for key in JobSpec::keys() {
        assert!(key.doc.ends_with(['.', ')']) && !key.expects.is_empty(), "{}", key.path);
        assert!(seen.insert(key.path.clone()), "{} twice", key.path);
        if let Some(default) = key.default {
            let assignment = format!("{}={default}", key.path);
            assert_eq!(accepted("", &[&assignment]), JobSpec::default(), "{assignment}");
        }
    }
}

#[test]
fn a_model_is_said_once() {
    let spec = accepted("[model]\nzoo = \"lenet\"", &[]);
    assert_eq!(spec.model.source(), "model.zoo");
    let text = spec.to_toml();
    assert!(text.contains("zoo = \"lenet\"") && !text.contains("layers"), "{text}");
    assert_eq!(accepted(&text, &[]), spec, "a job gives itself back");
    refused_with(
        "[model]\nzoo = \"lenet\"\nlayers = [\"dense auto\"]",
        &[],
        &["job.toml:2: model.zoo", "model.layers says what the model is already", "drop one of the two"],
    );
    refused_with("", &["model.zoo=lenett"], &["model.zoo", "did you mean `lenet`?"]);
    refused_with("", &["model.zoo=zzzzzzzzzzzz"], &["known are mlp, lenet, resnet-small"]);
}

#[test]
fn an_auto_encoder_has_no_labels_to_be_judged_by() {
    assert!(accepted("", &["model.zoo=autoencoder"]).model.reconstructs());
    assert!(accepted("", &["model.loss=reconstruction"]).model.reconstructs());
    assert!(!accepted("", &["model.zoo=mlp"]).model.reconstructs());
    refused_with(
        "",
        &["model.zoo=autoencoder-conv", "model.loss=hinge"],
        &["model.loss", "its own input again"],
    );
    refused_with("", &["model.loss=hingge"], &["did you mean `hinge`?"]);
    refused_with("", &["train.loss=hinge"], &["did you mean `model.loss`?"]);
}

#[test]
fn factors_of_ranks_are_a_table_of_their_own() {
    let spec = accepted("[engine]\nworkers = 4\nslow = { 2 = 3.0 }\npace = \"20ms\"", &["engine.slow.1=2"]);
    assert_eq!([0, 1, 2, 3].map(|rank| spec.engine.slow.of(rank)), [1.0, 2.0, 3.0, 1.0]);
    assert_eq!(accepted(&spec.to_toml(), &[]), spec, "{}", spec.to_toml());
    assert_eq!(accepted("", &["engine.slow={}"]), JobSpec::default());
    refused_with("[engine]\nslow = { 2 = 3.0 }", &[], &["job.toml:2", "engine.slow", "no rank 2"]);
    refused_with("", &["engine.slow={1=0.5}"], &["engine.slow", "rank 1", "between 1 and"]);
    refused_with("", &["engine.slow={fast=2}"], &["engine.slow", "{ 2 = 3.0 }", "fast = 2"]);
    refused_with("", &["engine.slow=3"], &["engine.slow", "{ 2 = 3.0 }", "got 3"]);
    refused_with("", &["engine.pace=0s"], &["engine.pace", "above 0"]);
    refused_with("", &["engine.jitter=-1"], &["engine.jitter", "between 0 and 10"]);
}

#[test]
fn what_cannot_be_reproduced_on_any_world_is_refused_by_name() {
    let on = "[train]\nreproducible = true";
    accepted(on, &["strategy.split=speed"]);
    accepted(on, &["strategy.preset=single"]);
    accepted(on, &["strategy.exchange.bucket=whole"]);
    for (setting, piece) in [
        ("strategy.preset=gosgd", "`gossip`"),
        ("strategy.preset=parameter-server", "`parameter-server`"),
        ("strategy.preset=horovod", "`ring` brackets sums by ranks"),
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
fn a_reproducible_recipe_does_not_tell_where_it_was_followed() {
    let recipe = |set: &[&str]| accepted("", set).recipe();
    let reproducible = "train.reproducible=true";
    assert_eq!(
        recipe(&[reproducible, "engine.workers=3"]),
        recipe(&[reproducible, "fault.checkpoint_every=7"])
    );
    assert_ne!(recipe(&[reproducible, "train.seed=8"]), recipe(&[reproducible]));
    assert_ne!(recipe(&["engine.workers=3"]), recipe(&[]));
}

#[test]
fn a_flag_with_nothing_behind_it_unsets_a_key_or_a_group() {
    let file = "[train]\nepochs = 3\nseed = 9\ntarget = { accuracy = 0.9, loss = 0.1 }\n";
    let job = resolve(file, &["train.target=", "train.epochs="]).unwrap();
    assert_eq!(job.spec.target, JobSpec::default().target);
    assert_eq!((job.spec.train.epochs, job.spec.train.seed), (JobSpec::default().train.epochs, 9));
    assert_eq!(job.layers.origin("train.epochs").to_string(), "--set train.epochs=");
    // What is set later counts, and what does not exist cannot be unset.
    assert_eq!(accepted(file, &["train.epochs=", "train.epochs=4"]).train.epochs, 4);
    let error = resolve(file, &["train.epocks="]).unwrap_err();
    assert!(error.message.contains("--set train.epocks=") && error.message.contains("epochs"), "{error}");
}

#[test]
fn lists_of_flags_take_commas_or_toml() {
    let spec =
        accepted("", &["data.ignore=id, date", "data.categorical=7", "model.layers=dense 32 relu,dense 10"]);
    assert_eq!(spec.data.ignore, ["id", "date"]);
    assert_eq!(spec.data.categorical, ["7"]);
    assert_eq!(spec.model.layers, ["dense 32 relu", "dense 10"]);
    let spec = accepted("", &[r#"data.ignore=["a,b", "c"]"#]);
    assert_eq!(spec.data.ignore, ["a,b", "c"]);
    // In a file a text is no list.
    assert!(resolve("[data]\nignore = \"a,b\"\n", &[]).is_err());
}

#[test]
fn a_fault_of_a_rank_that_does_not_exist_is_refused() {
    let fault = |rank: usize| format!("fault.inject=[{{ step = 4, rank = {rank}, kind = \"kill\" }}]");
    accepted("", &[&fault(1)]);
    let error = resolve("", &[&fault(2)]).unwrap_err();
    assert!(error.message.contains("there is no rank 2: ranks are 0 to 1"), "{error}");
    // A server is a rank, too.
    accepted("", &[&fault(2), "strategy.preset=parameter-server"]);
}
