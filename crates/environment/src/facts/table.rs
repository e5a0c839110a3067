/// The rows of a table, with a tab or a line's end behind each field. Tables are read in constants only, so a panic is a compile error.
pub const fn table<const ROWS: usize, const FIELDS: usize>(
    text: &'static str,
) -> [[&'static str; FIELDS]; ROWS] {
    let mut rows = [[""; FIELDS]; ROWS];
    let (mut rest, mut index) = (text, 0);
    while index < ROWS * FIELDS {
        let mut end = 0;
        while !matches!(rest.as_bytes()[end], b'\t' | b'\n' | b'\r') {
            end += 1;
        }
        assert!(rest.as_bytes()[end] != b'\r', "a line ends in CR LF");
        let is_last = index % FIELDS == FIELDS - 1;
        assert!(
            is_last == (rest.as_bytes()[end] == b'\n'),
            "a row has other fields"
        );
        rows[index / FIELDS][index % FIELDS] = rest.split_at(end).0;
        rest = rest.split_at(end + 1).1;
        index += 1;
    }
    assert!(rest.is_empty(), "there are more rows");
    rows
}
