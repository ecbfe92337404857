//! Pages that are generated from the code say what the code says.

mod harness;

use harness::skip;
use std::path::Path;

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
        "docs/{page} does not say what the code says; renew it with THALWEG_BLESS=1 cargo test -p thalweg --test docs"
    );
}

#[test]
fn the_page_about_jobs_is_up_to_date() {
    check("job.md", &thalweg::command::config::document());
}

#[test]
fn the_page_about_strategies_is_up_to_date() {
    check("strategies.md", &thalweg::command::strategies::document());
}
