//! What needs the library, in a build without it.

use super::refuses;

#[test]
fn commands_of_the_library_say_how_to_get_them() {
    let how = "install it with `--features library`";
    refuses(&["incidents", "run.jsonl", "--since", "2h"], how);
    refuses(&["page", "run.json", "-o", "-"], how);
    refuses(&["doctor", "--ranks"], how);
}
