//! Texts of a log as lines of a terminal.

/// The columns of a line.
const WIDTH: usize = 80;

/// Appends the words in indented lines.
pub fn wrap(text: &str, indent: &str, to: &mut String) {
    let mut columns = 0;
    for word in plain(text).split_whitespace() {
        let length = word.chars().count();
        if columns > 0 && columns + 1 + length > WIDTH {
            to.push('\n');
            columns = 0;
        }
        match columns {
            0 => to.push_str(indent),
            _ => to.push(' '),
        }
        columns += length + if columns == 0 { indent.len() } else { 1 };
        to.push_str(word);
    }
    to.push('\n');
}

/// A file may hold escape sequences.
pub fn plain(text: &str) -> String {
    text.replace(char::is_control, " ")
}
