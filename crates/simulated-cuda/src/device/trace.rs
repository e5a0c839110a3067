//! A record of the calls on a device, in order.

/// A record of calls, while it is switched on.
#[derive(Debug, Default)]
pub struct Trace {
    pub on: bool,
    pub text: String,
}

impl Trace {
    /// Adds a line, which is formatted only while recording is on.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if self.on {
            self.text.push_str(&line());
            self.text.push('\n');
        }
    }
}
