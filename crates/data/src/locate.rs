//! Resolves a source name to files on disk.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use thalweg_core::spec::nearest::nearest;
use thalweg_core::{Error, Kind, Result};

/// Supported file kinds by extension; each may be followed by `.gz`.
const EXTENSIONS: &[(&str, FileKind)] = &[
    ("csv", FileKind::Table),
    ("tsv", FileKind::Table),
    ("tab", FileKind::Table),
    ("data", FileKind::Table),
    ("test", FileKind::Table),
    ("libsvm", FileKind::Libsvm),
    ("svm", FileKind::Libsvm),
    ("svmlight", FileKind::Libsvm),
    ("parquet", FileKind::Parquet),
    ("txt", FileKind::Text),
];

/// File formats, by extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Delimited text.
    Table,
    /// Sparse rows with labels.
    Libsvm,
    /// Typed columns.
    Parquet,
    /// Plain text, read by character.
    Text,
}

#[derive(Debug, PartialEq)]
pub(crate) enum SourceLocation {
    Digits,
    /// A folder of IDX files.
    Folder(PathBuf),
    /// Files of one kind, sorted by name.
    Files(FileKind, Vec<PathBuf>),
}

pub(crate) fn locate(source: &str) -> Result<SourceLocation> {
    if let Some(name) = source.strip_prefix("builtin:") {
        return match name {
            "digits" => Ok(SourceLocation::Digits),
            _ => Err(Error::job(format!(
                "unknown data set `{source}`; the only one built in is builtin:digits"
            ))),
        };
    }
    let path = Path::new(source);
    if path.is_dir() {
        return Ok(SourceLocation::Folder(path.to_owned()));
    }
    let files = resolve(source)?;
    let kind = kind_of(&files[0])?;
    for file in &files {
        if !file.exists() {
            return Err(file_not_found(file));
        }
        check_regular(file)?;
        if kind_of(file)? != kind {
            return Err(Error::data(format!(
                "`{source}` matches files of different kinds: {} and {}",
                files[0].display(),
                file.display()
            ))
            .hint("use a narrower pattern"));
        }
    }
    Ok(SourceLocation::Files(kind, files))
}

/// The file of that name, or the files that match the pattern, sorted by name.
fn resolve(source: &str) -> Result<Vec<PathBuf>> {
    let path = Path::new(source);
    if path.exists() || !source.contains(['*', '?', '[']) {
        return Ok(vec![path.to_owned()]);
    }
    glob_files(source)
}

/// The files a source names, without checks: for input that is read once, so that any kind and a pipe are
/// allowed.
pub fn source_files(source: &str) -> Result<Vec<String>> {
    Ok(resolve(source)?.iter().map(|path| path.display().to_string()).collect())
}

fn glob_files(pattern: &str) -> Result<Vec<PathBuf>> {
    let paths = glob::glob(pattern)
        .map_err(|error| Error::job(format!("the pattern `{pattern}` is wrong: {error}")))?;
    let mut files = Vec::new();
    for path in paths {
        let path = path
            .map_err(|error| Error::io(format!("cannot read {}", error.path().display()), error.error()))?;
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Error::new(Kind::Io, format!("no file matches `{pattern}`")).hint(CHECK_PATH));
    }
    Ok(files)
}

/// Returns an error unless the path is a regular file. Rows are read more than once and by every rank, which
/// pipes and devices do not support.
pub(crate) fn check_regular(path: &Path) -> Result<()> {
    let failed = |error| Error::io(format!("cannot read {}", path.display()), &error);
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let what = match () {
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_dir() => "a folder",
        () => "a device",
    };
    Err(Error::data(format!("{} is {what}, not a file", path.display()))
        .hint("rows are read more than once: write them to a file first and name that"))
}

/// Whether the path exists, or the pattern matches a file.
pub fn source_exists(source: &str) -> bool {
    Path::new(source).exists() || glob_files(source).is_ok()
}

/// The kind of a file by its extension.
pub fn kind_by_name(path: &Path) -> Option<FileKind> {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    let extension = name.rsplit_once('.').map(|(_, extension)| extension).unwrap_or_default();
    EXTENSIONS.iter().find(|(known, _)| *known == extension).map(|(_, kind)| *kind)
}

/// A file name without `.gz` and without an extension of a known kind.
pub fn stem(name: &str) -> &str {
    let lower = name.to_lowercase();
    let unpacked = if lower.ends_with(".gz") { &name[..name.len() - ".gz".len()] } else { name };
    match unpacked.rsplit_once('.') {
        Some((stem, extension))
            if EXTENSIONS.iter().any(|(known, _)| extension.eq_ignore_ascii_case(known)) =>
        {
            stem
        }
        _ => unpacked,
    }
}

pub(crate) fn kind_of(path: &Path) -> Result<FileKind> {
    if let Some(kind) = kind_by_name(path) {
        return Ok(kind);
    }
    if !path.exists() {
        return Err(file_not_found(path));
    }
    let known: Vec<String> = EXTENSIONS.iter().map(|(known, _)| format!(".{known}")).collect();
    Err(Error::data(format!("{}: the kind of this file is not known from its name", path.display())).hint(
        format!(
            "known are {} (each also with .gz), and folders of IDX files; rename it or link to it",
            known.join(", ")
        ),
    ))
}

const CHECK_PATH: &str = "check the path: in a job file it counts from the file's folder, on the command line from the working folder";

/// Error for a missing file, with the most similar name in the same folder as a hint.
pub fn file_not_found(path: &Path) -> Error {
    let error = Error::new(Kind::Io, format!("cannot read {}: there is no such file", path.display()));
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wanted = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Ok(entries) = std::fs::read_dir(folder) else {
        return error.hint(format!("the folder {} cannot be read either", folder.display()));
    };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let packed = format!("{wanted}.gz");
    let close = names.iter().find(|name| **name == packed).map(String::as_str);
    match close.or_else(|| nearest(&wanted, names.iter().map(String::as_str))) {
        Some(name) => error.hint(format!("did you mean {}?", folder.join(name).display())),
        None => error.hint(CHECK_PATH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_suggests_a_similar_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("people.csv"), "a").unwrap();
        std::fs::write(folder.path().join("iris.csv.gz"), "a").unwrap();
        let hint = |name: &str| locate(folder.path().join(name).to_str().unwrap()).unwrap_err().hint.unwrap();
        assert!(hint("peple.csv").ends_with("people.csv?"));
        assert!(hint("iris.csv").ends_with("iris.csv.gz?"));
        assert!(hint("zzzzzzzzzzzzzzzz.csv").contains("check the path"));
        assert!(hint("nowhere/a.csv").contains("cannot be read either"));
    }

    #[test]
    fn pipes_and_devices_are_refused_without_being_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("rows.csv");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = locate(pipe.to_str().unwrap()).unwrap_err();
        assert!(error.message.ends_with("rows.csv is a pipe, not a file"), "{error}");
        assert!(error.hint.unwrap().contains("to a file first"));
        let device = folder.path().join("zeros.csv");
        std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
        let error = locate(device.to_str().unwrap()).unwrap_err();
        assert!(error.message.ends_with("zeros.csv is a device, not a file"), "{error}");
        std::fs::rename(&pipe, folder.path().join("train-images-idx3-ubyte")).unwrap();
        std::fs::write(folder.path().join("train-labels-idx1-ubyte"), "").unwrap();
        let spec = thalweg_core::spec::data::DataSpec {
            source: folder.path().to_str().unwrap().into(),
            ..Default::default()
        };
        let error = crate::Data::open(&spec, 1).unwrap_err();
        assert!(error.message.ends_with("train-images-idx3-ubyte is a pipe, not a file"), "{error}");
    }

    #[test]
    fn globs_are_sorted_and_must_match() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.csv", "a.csv", "c.csv.gz"] {
            std::fs::write(folder.path().join(name), "a").unwrap();
        }
        let at = |pattern: &str| locate(folder.path().join(pattern).to_str().unwrap());
        let Ok(SourceLocation::Files(FileKind::Table, files)) = at("*.csv*") else { panic!("not found") };
        let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.csv", "b.csv", "c.csv.gz"]);
        assert!(at("*.parquet").unwrap_err().message.contains("no file matches"));
        std::fs::write(folder.path().join("d.txt"), "a").unwrap();
        assert!(at("*").unwrap_err().message.contains("different kinds"));
    }

    #[test]
    fn a_stem_has_no_known_extension() {
        assert_eq!(stem("higgs.train.tsv.gz"), "higgs.train");
        assert_eq!(stem("v1.2.CSV"), "v1.2");
        assert_eq!((stem("rows.gz"), stem("mnist"), stem(".csv")), ("rows", "mnist", ""));
    }

    #[test]
    fn unknown_kinds_and_builtins_list_the_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.xlsx");
        std::fs::write(&path, "a").unwrap();
        let error = locate(path.to_str().unwrap()).unwrap_err();
        assert!(error.hint.unwrap().contains(".csv, .tsv"), "{}", error.message);
        assert!(locate("builtin:mnist").unwrap_err().message.contains("builtin:digits"));
    }
}
