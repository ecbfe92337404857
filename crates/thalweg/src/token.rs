//! The secret by which the ranks of a job know each other: the user's, the launcher's, or the one that rank 0 made.

use std::ffi::OsString;
use thalweg_cluster::engine::local::Plan;
use thalweg_cluster::rendezvous::local_token;
use thalweg_core::Result;

/// The secret of the workers of this launcher, whose coordinator listens at that address.
pub fn of_plan(plan: &Plan, address: &str) -> String {
    let made =
        plan.variables.iter().find(|(name, _)| name == "THALWEG_TOKEN").map(|(_, token)| token.clone());
    // Of several launchers on one host none makes it: rank 0 does.
    of_job(made.or_else(|| std::env::var_os("THALWEG_TOKEN")), address)
}

/// The secret of the job whose coordinator listens at that address: what was given, or what it offers to its user.
pub fn of_job(given: Option<OsString>, address: &str) -> String {
    let given = given.filter(|token| !token.is_empty()).map(OsString::into_encoded_bytes);
    let offered = || local_token::find(address.parse().ok()?).ok();
    String::from_utf8_lossy(&given.or_else(offered).unwrap_or_default()).into_owned()
}

/// The user's secret, if there is one; one that can be guessed is refused.
pub fn of_user() -> Result<Option<String>> {
    let token = std::env::var_os("THALWEG_TOKEN").unwrap_or_default().to_string_lossy().into_owned();
    local_token::check_length(token.as_bytes())?;
    Ok(Some(token).filter(|token| !token.is_empty()))
}
