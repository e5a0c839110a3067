use std::fmt::{self, Formatter};

use super::report::{Audit, Audited, Received};
use crate::modules::by_module;

/// What is wrong comes first.
const SECTIONS: [(Received, &str); 9] = [
    (Received::Nothing, "no gradient"),
    (Received::NotFinite, "not finite"),
    (Received::Wrong, "wrong"),
    (Received::Undecided, "undecided"),
    (Received::Zeros, "all zeros"),
    (Received::TooSmall, "too small to measure"),
    (Received::Finite, "finite"),
    (Received::Right, "right"),
    (Received::Statistic, "statistic"),
];

impl fmt::Display for Received {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let section = SECTIONS.iter().find(|(received, _)| received == self);
        f.pad(section.map_or("", |(_, text)| text))
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} Vars", self.vars.len())?;
        for (index, received) in self.sections().enumerate() {
            let separator = if index == 0 { ": " } else { ", " };
            write!(f, "{separator}{received} {}", self.count(received))?;
        }
        for received in self.sections() {
            write!(f, "\n{received}")?;
            match f.alternate() || matches!(received, Received::Wrong | Received::Undecided) {
                true => self.write_vars(received, f)?,
                false => self.write_modules(received, f)?,
            }
        }
        Ok(())
    }
}

impl Audit {
    /// What at least one Var received.
    fn sections(&self) -> impl Iterator<Item = Received> {
        let sections = SECTIONS.into_iter().map(|(received, _)| received);
        sections.filter(|received| self.of(*received).next().is_some())
    }

    fn write_vars(&self, received: Received, f: &mut Formatter<'_>) -> fmt::Result {
        let names = self.vars.iter().map(|var| var.name.chars().count());
        let shapes = self.vars.iter().map(|var| format!("{:?}", var.shape).len());
        let (name, shape) = (names.max().unwrap_or(0), shapes.max().unwrap_or(0));
        for var in self.of(received) {
            let text = format!("{:?}", var.shape);
            write!(f, "\n  {:name$}  ", var.name)?;
            match var.norm {
                Some(norm) => write!(f, "{text:shape$}  norm {norm:.3e}")?,
                None => f.write_str(&text)?,
            }
            if let Some(slope) = var.slope {
                write!(f, "  {slope}")?;
                let factor = slope.factor().filter(|_| received == Received::Wrong);
                factor.map_or(Ok(()), |factor| write!(f, ", {factor:.4} times"))?;
            }
        }
        Ok(())
    }

    fn write_modules(&self, received: Received, f: &mut Formatter<'_>) -> fmt::Result {
        let names = self.of(received).map(|var| var.name.as_str());
        let others = self.vars.iter().filter(|var| var.received != received);
        for modules in by_module(names, others.map(|var| var.name.as_str())) {
            write!(f, "\n  {modules}")?;
            if !matches!(received, Received::Finite | Received::Right) {
                continue;
            }
            let is_of_group = |var: &&Audited| modules.names.contains(&var.name.as_str());
            let norms = self.of(received).filter(is_of_group);
            let mut norms: Vec<f64> = norms.filter_map(|var| var.norm).collect();
            norms.sort_by(f64::total_cmp);
            match norms.as_slice() {
                [] => {}
                [norm] => write!(f, ", norm {norm:.3e}")?,
                [least, .., largest] => write!(f, ", norms {least:.3e} to {largest:.3e}")?,
            }
        }
        Ok(())
    }
}
