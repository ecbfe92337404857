//! The shared secret of a job's ranks: set by the user, made by the launcher, or made by rank 0.

use std::ffi::OsString;
use thalweg_cluster::engine::local::LaunchPlan;
use thalweg_cluster::rendezvous::local_token;
use thalweg_core::Result;

/// The token of this launcher's workers; `address` is that of their coordinator.
pub fn of_plan(plan: &LaunchPlan, address: &str) -> String {
    let made =
        plan.variables.iter().find(|(name, _)| name == "THALWEG_TOKEN").map(|(_, token)| token.clone());
    // With several launchers on one host, rank 0 makes the token instead.
    of_job(made.or_else(|| std::env::var_os("THALWEG_TOKEN")), address)
}

/// The token of the job whose coordinator listens at `address`: `given`, or the one it stores for its user.
pub fn of_job(given: Option<OsString>, address: &str) -> String {
    let given = given.filter(|token| !token.is_empty()).map(OsString::into_encoded_bytes);
    let stored = || local_token::find(address.parse().ok()?).ok();
    String::from_utf8_lossy(&given.or_else(stored).unwrap_or_default()).into_owned()
}

/// The token in `THALWEG_TOKEN`, if set; one that is too short is refused.
pub fn of_user() -> Result<Option<String>> {
    let token = std::env::var_os("THALWEG_TOKEN").unwrap_or_default().to_string_lossy().into_owned();
    local_token::check_length(token.as_bytes())?;
    Ok(Some(token).filter(|token| !token.is_empty()))
}
