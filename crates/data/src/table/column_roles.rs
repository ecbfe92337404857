//! Decides which column is the label, which are inputs and which are ignored.

use std::collections::HashMap;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::nearest::unknown;
use thalweg_core::spec::setting::ColumnRef;
use thalweg_core::{Error, Result};

/// Column indices by role.
#[derive(Debug, PartialEq)]
pub(crate) struct ColumnRoles {
    pub(crate) label: usize,
    pub(crate) inputs: Vec<usize>,
    /// Columns declared categorical by the job.
    pub(crate) categorical: Vec<usize>,
}

impl ColumnRoles {
    /// Resolves the job's settings against the column names.
    pub(crate) fn choose(names: &[String], spec: &DataSpec) -> Result<ColumnRoles> {
        let label = match &spec.label {
            None => names.len().checked_sub(1).ok_or_else(|| Error::data("the table has no columns"))?,
            Some(ColumnRef::Name(name)) => find(names, name, "data.label")?,
            Some(ColumnRef::Index(index)) => by_index(names.len(), *index)?,
        };
        let all = |list: &[String], key: &str| -> Result<Vec<usize>> {
            list.iter().map(|name| find(names, name, key)).collect()
        };
        let ignore = all(&spec.ignore, "data.ignore")?;
        let categorical = all(&spec.categorical, "data.categorical")?;
        if ignore.contains(&label) {
            return Err(Error::job(format!("the label column `{}` is in data.ignore", names[label])));
        }
        let inputs: Vec<usize> =
            (0..names.len()).filter(|column| *column != label && !ignore.contains(column)).collect();
        if inputs.is_empty() {
            return Err(Error::data(format!(
                "there is no column to learn from besides the label `{}`",
                names[label]
            ))
            .hint("check data.label, data.ignore and data.delimiter"));
        }
        Ok(ColumnRoles { label, inputs, categorical })
    }
}

fn find(names: &[String], name: &str, key: &str) -> Result<usize> {
    let found = names.iter().position(|known| known == name);
    found.ok_or_else(|| {
        Error::job(format!("{key}: {}", unknown("column", name, names.iter().map(String::as_str))))
            .hint("columns without a header are called c0, c1, ...; data.header sets whether there is one")
    })
}

fn by_index(count: usize, index: i64) -> Result<usize> {
    let resolved = if index < 0 { index + count as i64 } else { index };
    usize::try_from(resolved).ok().filter(|resolved| *resolved < count).ok_or_else(|| {
        Error::job(format!("data.label = {index}, but there are only {count} columns"))
            .hint("columns are counted from 0, or from -1 at the end")
    })
}

/// Column names from a header: trimmed, empty ones numbered, repeated ones with a suffix.
pub(crate) fn header_names(fields: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut names = Vec::new();
    for (number, field) in fields.enumerate() {
        let field = field.trim().trim_start_matches('\u{feff}').to_string();
        let name = if field.is_empty() { format!("c{number}") } else { field };
        let mut unique = name.clone();
        let mut count = seen.get(&name).copied().unwrap_or(0);
        while seen.contains_key(&unique) {
            unique = format!("{name}.{count}");
            count += 1;
        }
        seen.insert(name, count.max(1));
        seen.entry(unique.clone()).or_insert(1);
        names.push(unique);
    }
    names
}

/// Column names for a table without a header.
pub(crate) fn default_names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("c{number}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["age", "city", "income"].map(String::from).to_vec()
    }

    #[test]
    fn the_label_is_the_last_column_or_named_or_indexed() {
        let label =
            |label| ColumnRoles::choose(&names(), &DataSpec { label, ..Default::default() }).map(|c| c.label);
        assert_eq!(label(None), Ok(2));
        assert_eq!(label(Some(ColumnRef::Name("city".into()))), Ok(1));
        assert_eq!(label(Some(ColumnRef::Index(-3))), Ok(0));
        assert!(label(Some(ColumnRef::Index(3))).unwrap_err().message.contains("only 3 columns"));
        let error = label(Some(ColumnRef::Name("incme".into()))).unwrap_err();
        assert!(error.message.contains("did you mean `income`?"));
    }

    #[test]
    fn columns_can_be_ignored_but_not_the_label_and_not_all() {
        let choose = |ignore: &[&str]| {
            let ignore = ignore.iter().map(|name| name.to_string()).collect();
            ColumnRoles::choose(&names(), &DataSpec { ignore, ..Default::default() })
        };
        assert_eq!(choose(&["age"]).unwrap().inputs, [1]);
        assert!(choose(&["income"]).is_err());
        assert!(choose(&["age", "city"]).unwrap_err().message.contains("no column to learn from"));
    }

    #[test]
    fn names_become_unique() {
        let header = ["\u{feff}a", " b ", "", "a", "a"].into_iter().map(String::from);
        assert_eq!(header_names(header), ["a", "b", "c2", "a.1", "a.2"]);
        let repeated = ["a", "a", "a.1"].into_iter().map(String::from);
        assert_eq!(header_names(repeated), ["a", "a.1", "a.1.1"]);
    }
}
