//! Branches. Labels may come later, so the targets are filled in when the whole kernel is decoded.

use super::decode::Decoder;
use super::opcode::Opcode;
use super::operand::Operand;
use super::types::Type;
use super::warp::Action;

/// A branch whose label may come later.
pub struct Fixup<'m> {
    instruction: usize,
    scope: Option<usize>,
    labels: Vec<&'m str>,
}

/// Decodes `bra` and `brx`.
pub fn decode<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    if op.name == "bra" {
        let label = operands
            .first()
            .and_then(Operand::name)
            .ok_or("a label is missing")?;
        decoder.branch(vec![label], Action::Branch(0));
        return Ok(());
    }
    let [index, table] = operands else {
        return Err("operands are missing".to_owned());
    };
    let slot = decoder.read(index, Type::U32)?;
    let labels = table
        .name()
        .and_then(|name| decoder.tables.get(name))
        .ok_or("an unknown table")?
        .clone();
    decoder.branch(labels, Action::Switch(slot, Vec::new()));
    Ok(())
}

impl<'m> Decoder<'m> {
    fn branch(&mut self, labels: Vec<&'m str>, action: Action) {
        let scope = self.scopes.current();
        self.fixups.push(Fixup {
            instruction: self.code.len(),
            scope,
            labels,
        });
        self.emit(action);
    }

    /// Fills in the targets of all branches.
    pub fn finish_branches(&mut self) -> Result<(), String> {
        for Fixup {
            instruction,
            scope,
            labels,
        } in std::mem::take(&mut self.fixups)
        {
            let find = |name: &&str| {
                self.scopes
                    .label(scope, name)
                    .ok_or_else(|| format!("unknown label {name}"))
            };
            let targets = labels.iter().map(find).collect::<Result<Vec<_>, _>>()?;
            self.code[instruction].action = match &self.code[instruction].action {
                Action::Switch(slot, _) => Action::Switch(*slot, targets),
                _ => Action::Branch(targets[0]),
            };
        }
        Ok(())
    }
}
