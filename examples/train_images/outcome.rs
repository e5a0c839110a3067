//! How the test went: a table of what was taken for what, and the mistakes drawn in characters.

use std::fmt::{self, Display};

use crate::answers::Answer;
use crate::digits::{Digit, SIDE};

/// Number of images drawn in a row.
const IN_A_ROW: usize = 4;
/// From paper to ink.
const INKS: [char; 5] = [' ', '░', '▒', '▓', '█'];

/// The test images with the net's answers.
pub struct Outcome<'a> {
    answered: Vec<(&'a Digit, Answer)>,
}

impl<'a> Outcome<'a> {
    pub fn new(digits: &'a [Digit], answers: &[Answer]) -> Self {
        let answered = digits.iter().zip(answers.iter().copied());
        Self {
            answered: answered.collect(),
        }
    }

    /// The right answers in percent.
    pub fn accuracy(&self) -> f64 {
        let wrong = self.mistakes().len() as f64;
        100. * (1. - wrong / self.answered.len() as f64)
    }

    /// The wrong answers, the most certain one first.
    fn mistakes(&self) -> Vec<&(&'a Digit, Answer)> {
        let answered = self.answered.iter();
        let mut wrong: Vec<_> = answered
            .filter(|(digit, answer)| digit.label != answer.digit)
            .collect();
        wrong.sort_by(|(_, a), (_, b)| b.certainty.total_cmp(&a.certainty));
        wrong
    }

    /// Rows of digits, columns of answers.
    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts = [[0; 10]; 10];
        for (digit, answer) in &self.answered {
            counts[digit.label as usize][answer.digit as usize] += 1;
        }
        writeln!(f, "taken for   0   1   2   3   4   5   6   7   8   9")?;
        for (digit, row) in counts.iter().enumerate() {
            write!(f, "        {digit}")?;
            for count in row {
                match count {
                    0 => write!(f, "   ·")?,
                    count => write!(f, "{count:4}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }

    /// The worst mistakes side by side.
    fn drawings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mistakes = self.mistakes();
        let Some(worst) = mistakes.chunks(IN_A_ROW).next() else {
            return writeln!(f, "no mistakes");
        };
        let count = mistakes.len();
        let plural = if count == 1 { "" } else { "s" };
        writeln!(f, "{count} mistake{plural}, the most certain first:\n")?;
        for (digit, answer) in worst {
            let title = format!("{} as {}", digit.label, answer.digit);
            let title = format!("{title}, {:.0} %", 100. * answer.certainty);
            write!(f, " {title:<width$}", width = 2 * SIDE + 1)?;
        }
        writeln!(f)?;
        for row in 0..SIDE {
            for (digit, _) in worst {
                let pixels = &digit.pixels[row * SIDE..(row + 1) * SIDE];
                let line: String = pixels.iter().flat_map(|&ink| [shade(ink); 2]).collect();
                write!(f, " {line} ")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The character for an amount of ink from 0 to 1.
fn shade(ink: f32) -> char {
    let level = (ink * (INKS.len() - 1) as f32).round();
    INKS[(level as usize).min(INKS.len() - 1)]
}

impl Display for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table(f)?;
        writeln!(f)?;
        self.drawings(f)
    }
}
