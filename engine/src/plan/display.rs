//! A plan as text for people and as dot for graphviz. Golden-tested; JSON is the plan's serde image.

use std::fmt::{self, Write};

use super::{Plan, PlannedChain};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channels: usize = self.edges.iter().map(|e| e.channels).sum();
        writeln!(
            f,
            "job {} · {} tasks on {} threads{} · {} channels of {} batches · {} key groups",
            self.job,
            self.tasks(),
            self.tasks(),
            match self.client_threads() {
                0 => String::new(),
                n => format!(", clients on {n}"),
            },
            channels,
            self.channel_depth,
            self.key_groups
        )?;
        for (i, chain) in self.chains.iter().enumerate() {
            writeln!(f, "  [{i}] ×{} {}", chain.parallelism, Chain(chain))?;
            for edge in self.edges.iter().filter(|e| e.from == i) {
                let side = edge.side.map(|s| format!(" ({s})")).unwrap_or_default();
                writeln!(f, "        └─ {}{side} → [{}]", edge.partitioning, edge.to)?;
            }
        }
        Ok(())
    }
}

struct Chain<'a>(&'a PlannedChain);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, op) in self.0.operators.iter().enumerate() {
            if i > 0 {
                f.write_str(" → ")?;
            }
            write!(f, "{}", op.uid)?;
            if op.uid != op.kind {
                write!(f, ":{}", op.kind)?;
            }
            if op.stateful {
                f.write_char('*')?;
            }
        }
        Ok(())
    }
}

impl Plan {
    /// The plan as a graphviz digraph: one box per chain, one arrow per edge.
    pub fn to_dot(&self) -> String {
        let quote = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let mut dot = format!("digraph \"{}\" {{\n  rankdir=LR;\n  node [shape=box];\n", quote(&self.job));
        for (i, chain) in self.chains.iter().enumerate() {
            let label = quote(&Chain(chain).to_string()).replace(" → ", "\\n");
            dot.push_str(&format!("  c{i} [label=\"{label}\\n×{}\"];\n", chain.parallelism));
        }
        for edge in &self.edges {
            let side = edge.side.map(|s| format!(" ({s})")).unwrap_or_default();
            dot.push_str(&format!(
                "  c{} -> c{} [label=\"{}{side}\"];\n",
                edge.from, edge.to, edge.partitioning
            ));
        }
        dot.push_str("}\n");
        dot
    }
}
