//! Running other programs from the workspace root.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The result of a task; the error is a sentence for the user.
pub type Outcome<T = ()> = Result<T, String>;

/// The folder of the root Cargo.toml.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The cargo that started this process, or the one on the path, in the workspace root.
pub fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root());
    command
}

/// The command as typed in a shell.
pub fn shell_line(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let variables = variables.map(|(name, value)| format!("{}={}", name.display(), quoted(value)));
    let program = Path::new(command.get_program());
    let cargo = std::env::var_os("CARGO").is_some_and(|cargo| Path::new(&cargo) == program);
    let program = if cargo { "cargo".into() } else { quoted(program.as_os_str()) };
    let arguments = command.get_args().map(quoted);
    variables.chain([program]).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    if word.contains([' ', '*', '$', '"']) { format!("'{word}'") } else { word.into_owned() }
}

/// Runs a command with inherited standard streams; the error has the command to repeat.
pub fn run(command: &mut Command) -> Outcome {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}", shell_line(command))),
        Err(error) => Err(format!("cannot start `{}`: {error}", shell_line(command))),
    }
}

/// Runs a command and returns its standard output; standard error is inherited.
pub fn output(command: &mut Command) -> Outcome<Vec<u8>> {
    match command.stderr(Stdio::inherit()).output() {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => Err(format!("`{}` ended with {}", shell_line(command), output.status)),
        Err(error) => Err(format!("cannot start `{}`: {error}", shell_line(command))),
    }
}

/// Whether a command can be run and succeeds; its output is discarded.
pub fn succeeds(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// The same with a timeout, after which the command is killed.
pub fn succeeds_within(command: &mut Command, limit: Duration) -> bool {
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let Ok(mut child) = started else { return false };
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if begun.elapsed() < limit => std::thread::sleep(Duration::from_millis(50)),
            _ => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// Builds the `thalweg` binary and returns its path.
pub fn build_thalweg(profile: &[&str]) -> Outcome<PathBuf> {
    build_thalweg_by(&mut cargo(&[]), profile)
}

/// The same with a prepared cargo command.
pub fn build_thalweg_by(cargo: &mut Command, arguments: &[&str]) -> Outcome<PathBuf> {
    build_package(cargo, "thalweg", arguments)
}

/// Builds the binary of a package and returns its path.
pub fn build_package(cargo: &mut Command, package: &str, arguments: &[&str]) -> Outcome<PathBuf> {
    let build = cargo.args(["build", "-p", package, "--message-format=json-render-diagnostics"]);
    let messages = output(build.args(arguments))?;
    let messages = String::from_utf8_lossy(&messages);
    executable(&messages).ok_or_else(|| format!("cargo built no binary of {package}"))
}

/// The last executable in cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    let (_, rest) = messages.rsplit_once("\"executable\":\"")?;
    rest.split_once('"').map(|(path, _)| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_quoted_for_a_shell() {
        let mut command = Command::new("tool");
        command.args(["-x", "two words"]).env("FLAGS", "-D warnings");
        assert_eq!(shell_line(&command), "FLAGS='-D warnings' tool -x 'two words'");
    }

    #[test]
    fn a_hanging_command_is_killed() {
        assert!(succeeds_within(&mut Command::new("true"), Duration::from_secs(60)));
        assert!(!succeeds_within(Command::new("sleep").arg("600"), Duration::from_millis(100)));
    }

    #[test]
    fn the_binary_is_found_in_cargos_messages() {
        let messages = "{\"executable\":null}\n{\"executable\":\"/t/debug/thalweg\",\"fresh\":true}\n{}";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/debug/thalweg")));
        assert_eq!(executable("{\"executable\":null}"), None);
    }
}
