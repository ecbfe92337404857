//! Suggestions for misspelled names.

/// The candidate with the smallest edit distance, if that is small enough.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= 1 + name.len().max(candidate.len()) / 3)
        .map(|(_, candidate)| candidate)
}

/// `unknown key `epoch`; did you mean `epochs`?`, or all candidates if none is close.
pub fn unknown<'a>(what: &str, name: &str, candidates: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(name, candidates.clone()) {
        Some(candidate) => format!("unknown {what} `{name}`; did you mean `{candidate}`?"),
        None => {
            let all: Vec<&str> = candidates.collect();
            format!("unknown {what} `{name}`; known are {}", all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_has_a_suggestion_and_other_names_list_all() {
        let names = ["epochs", "global_batch", "seed"];
        assert_eq!(nearest("epoch", names.into_iter()), Some("epochs"));
        assert_eq!(nearest("globl_batch", names.into_iter()), Some("global_batch"));
        assert_eq!(nearest("zzzzzzzz", names.into_iter()), None);
        assert!(unknown("key", "zzzzzzzz", names.into_iter()).contains("epochs, global_batch, seed"));
    }
}
