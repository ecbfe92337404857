//! A minimal Rust lexer that separates code from comments and literals.

/// The source with comments and literals replaced by spaces; lines keep their length.
pub fn code_only(source: &str) -> String {
    let characters: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < characters.len() {
        let end = literal_end(&characters, at);
        if end == at {
            code.push(characters[at]);
            at += 1;
        } else {
            code.extend(characters[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

/// The end of the comment or literal that begins at `at`; `at` if none does.
fn literal_end(text: &[char], at: usize) -> usize {
    let next = |offset: usize| text.get(at + offset).copied().unwrap_or('\0');
    let in_word = at > 0 && is_word(text[at - 1]);
    match next(0) {
        '/' if next(1) == '/' => find(text, at, |rest| rest[0] == '\n').unwrap_or(text.len()),
        '/' if next(1) == '*' => block_comment_end(text, at),
        '"' => quoted_end(text, at, '"'),
        '\'' if next(1) == '\\' || next(2) == '\'' => quoted_end(text, at, '\''),
        'r' if !in_word || text[at - 1] == 'b' => raw_string_end(text, at),
        _ => at,
    }
}

fn quoted_end(text: &[char], at: usize, quote: char) -> usize {
    let mut end = at + 1;
    while end < text.len() && text[end] != quote {
        end += if text[end] == '\\' { 2 } else { 1 };
    }
    (end + 1).min(text.len())
}

/// Block comments nest.
fn block_comment_end(text: &[char], at: usize) -> usize {
    let (mut depth, mut end) = (0, at);
    while end < text.len() {
        match text[end..] {
            ['/', '*', ..] => (depth, end) = (depth + 1, end + 2),
            ['*', '/', ..] => (depth, end) = (depth - 1, end + 2),
            _ => end += 1,
        }
        if depth == 0 {
            return end;
        }
    }
    text.len()
}

/// `r"..."` or `r##"..."##`; `at` for any other `r`.
fn raw_string_end(text: &[char], at: usize) -> usize {
    let hashes = text[at + 1..].iter().take_while(|&&c| c == '#').count();
    let begin = at + 1 + hashes;
    if text.get(begin) != Some(&'"') {
        return at;
    }
    let closes =
        |rest: &[char]| rest[0] == '"' && rest[1..].iter().take_while(|&&c| c == '#').count() >= hashes;
    find(text, begin + 1, closes).map_or(text.len(), |quote| quote + 1 + hashes)
}

fn find(text: &[char], from: usize, here: impl Fn(&[char]) -> bool) -> Option<usize> {
    (from..text.len()).find(|&at| here(&text[at..]))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether the line contains the whole word.
pub fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank() {
        let source = "let a = \"x // \\\" y\"; // z\nlet b = 'c'; /* d /* e */ f */ g::<'h>()";
        let code = code_only(source);
        assert_eq!(code.chars().count(), source.chars().count());
        for hidden in ["x", "y", "z", "c", "d", "f"] {
            assert!(!has_word(&code, hidden), "{hidden} in {code}");
        }
        assert!(has_word(&code, "g") && has_word(&code, "h"));
    }

    #[test]
    fn raw_strings_end_at_their_delimiter() {
        let code = code_only("a(r#\"in \"quotes\" here\"#, br\"x\", r\"y\\\") + for_b");
        for hidden in ["in", "quotes", "here", "x", "y"] {
            assert!(!has_word(&code, hidden), "{hidden} in {code}");
        }
        assert!(code.contains("for_b"));
    }

    #[test]
    fn unterminated_literals_end_with_the_file() {
        for open in ["\"abc", "/* abc", "r#\"abc\"", "'\\", "// abc"] {
            assert_eq!(code_only(open).trim(), "", "{open}");
        }
    }

    #[test]
    fn a_word_is_not_part_of_another() {
        assert!(has_word("pub unsafe fn", "unsafe"));
        assert!(!has_word("unsafe_op_in_unsafe_fn", "unsafe"));
    }
}
