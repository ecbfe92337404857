//! Generated pages agree with the code.

mod harness;

use harness::skip;
use std::path::Path;
use thalweg_train::registry;

fn check(page: &str, expected: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    if !folder.exists() {
        return skip("the pages are not part of this copy");
    }
    let path = folder.join(page);
    if std::env::var_os("THALWEG_BLESS").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/{page} is out of date; renew it with THALWEG_BLESS=1 cargo test -p thalweg --test docs"
    );
}

#[test]
fn the_page_about_jobs_is_up_to_date() {
    check("job.md", &thalweg::command::config::document());
}

/// Parameters of each network of the zoo, for the data that the page names.
#[test]
fn the_page_about_models_lists_every_network_and_its_size() {
    use thalweg_core::Task;
    use thalweg_graph::{Input, Options, zoo};
    let Ok(page) =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md"))
    else {
        return eprintln!("skipped: the pages are not part of this copy");
    };
    for model in &zoo::MODELS {
        let (image, text) = (Input::Image([28, 28, 1]), Input::Symbols { window: 64, vocabulary: 65 });
        let (input, outputs) = if (model.layers)(image).is_ok() { (image, 10) } else { (text, 65) };
        let network =
            zoo::network(model.name, input, outputs, Task::Classification, Options::default()).unwrap();
        let size = thalweg::view::formatting::count(network.describe(1).parameters as u64);
        let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", model.name)));
        let row = row.unwrap_or_else(|| panic!("no row for {}", model.name));
        assert!(row.contains(&size), "{}: {size} parameters", model.name);
    }
}

#[test]
fn every_example_is_a_job() {
    let Ok(folder) = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")) else {
        return eprintln!("skipped: the examples are not part of this copy");
    };
    let jobs = folder.flatten().map(|entry| entry.path());
    for path in jobs.filter(|path| path.extension().is_some_and(|ending| ending == "toml")) {
        let mut layers = thalweg_core::spec::JobLayers::default();
        layers.add_file(&path.display().to_string(), &std::fs::read_to_string(&path).unwrap()).unwrap();
        registry::resolve(layers).unwrap();
    }
}

#[test]
fn the_page_about_strategies_is_up_to_date() {
    check("strategies.md", &thalweg::command::strategies::document());
}
