//! Options by one rule: the command line goes before the environment, that before a file, that before the default.
//!
//! Each option `--some-name` of a program is `WEIR_SOME_NAME` in the environment, unless its help names another variable, and
//! `some-name` in a TOML file that `--config` or `WEIR_CONFIG` names:
//!
//! ```toml
//! checkpoints = "s3://state/user-profile"
//! checkpoint-every = 10000
//! state-folder = ["/data1/weir", "/data2/weir"]
//! set = ["security.protocol=SASL_SSL", "sasl.password=@/run/secrets/kafka"]
//! ```
//!
//! A variable that is set but blank, as compose files do it, is not set.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use toml::{Table, Value};

const FILE: &str = "config";
const FILE_VARIABLE: &str = "WEIR_CONFIG";

/// The options of this process. Ends it with a message when they make no sense, or when help was asked for.
///
/// *Blocking*: while the file is read.
pub fn parse<O: CommandFactory + FromArgMatches>() -> O {
    read(std::env::args_os().collect()).unwrap_or_else(|e| e.exit())
}

/// The options that these arguments, the environment and the file say.
fn read<O: CommandFactory + FromArgMatches>(args: Vec<OsString>) -> Result<O, clap::Error> {
    let mut command = in_environment(
        O::command().arg(
            Arg::new(FILE)
                .long(FILE)
                .value_name("FILE")
                .env(FILE_VARIABLE)
                .help("Takes options from a TOML file, by their names"),
        ),
    );
    let named = std::env::var_os(FILE_VARIABLE).filter(|value| !blank(value)).map(PathBuf::from);
    if let Some(file) = file_of(&args).or(named) {
        command = with_file(command, &file)?;
    }
    O::from_arg_matches(&command.try_get_matches_from_mut(args)?).map_err(|e| e.format(&mut command))
}

fn blank(value: &OsString) -> bool {
    value.to_string_lossy().trim().is_empty()
}

/// Gives each option a variable. Values stay out of the help: some are secrets.
fn in_environment(command: Command) -> Command {
    command.mut_args(|arg| {
        let Some(long) = arg.get_long() else { return arg };
        let own = arg.get_env().map(|name| name.to_string_lossy().into_owned());
        let name = own.unwrap_or_else(|| format!("WEIR_{}", long.to_uppercase().replace('-', "_")));
        let set_but_blank = std::env::var_os(&name).is_some_and(|value| blank(&value));
        let arg = arg.hide_env_values(true);
        // There is no way to take a variable away, but one that nobody can set is none.
        if set_but_blank { arg.env("").hide_env(true) } else { arg.env(name) }
    })
}

/// The file that the arguments name. Looked for by hand: what it says decides how the others are read.
fn file_of(args: &[OsString]) -> Option<PathBuf> {
    let mut args = args.iter().skip(1).map(|arg| arg.to_string_lossy()).take_while(|arg| arg != "--");
    while let Some(arg) = args.next() {
        match arg.strip_prefix("--config") {
            Some("") => return args.next().map(|file| PathBuf::from(file.as_ref())),
            Some(rest) if rest.starts_with('=') => return Some(PathBuf::from(&rest[1..])),
            _ => {}
        }
    }
    None
}

/// What the file says becomes what holds when nobody says anything else.
fn with_file(mut command: Command, file: &Path) -> Result<Command, clap::Error> {
    let wrong = |command: &mut Command, why: String| {
        Err(command.error(ErrorKind::InvalidValue, format!("{}: {why}", file.display())))
    };
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) => return wrong(&mut command, e.to_string()),
    };
    let table: Table = match text.parse() {
        Ok(table) => table,
        Err(e) => return wrong(&mut command, e.to_string()),
    };
    for (key, value) in table {
        let known = command.get_arguments().find(|arg| arg.get_long() == Some(&key) && key != FILE);
        let Some(id) = known.map(|arg| arg.get_id().clone()) else {
            let all: Vec<_> =
                command.get_arguments().filter_map(Arg::get_long).filter(|l| *l != FILE).collect();
            let why = format!("{key} is no option; there are {}", all.join(", "));
            return wrong(&mut command, why);
        };
        let Some(values) = values(&value) else {
            let why = format!(
                "{key} is {}: write text, a number, true or false, or a list of them",
                value.type_str()
            );
            return wrong(&mut command, why);
        };
        command = command.mut_arg(id, |arg| {
            // What the file says may be a secret.
            let hides = arg.get_action().takes_values();
            arg.required(false).default_values(values).hide_default_value(hides)
        });
    }
    Ok(command)
}

fn values(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(all) => all.iter().map(one).collect(),
        value => Some(vec![one(value)?]),
    }
}

fn one(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(yes) => Some(yes.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug, PartialEq)]
    struct Options {
        #[arg(long, default_value_t = 1)]
        rate: u64,
        #[arg(long)]
        topic: String,
        #[arg(long)]
        set: Vec<String>,
        #[arg(long)]
        fresh: bool,
        #[arg(long)]
        ratio: Option<f64>,
        file: Option<String>,
    }

    fn of(file: &str, args: &[&str]) -> Result<Options, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weir.toml");
        fs::write(&path, file).expect("a file");
        let config = format!("--config={}", path.display());
        let all = ["program", &config].into_iter().chain(args.iter().copied()).map(OsString::from);
        read(all.collect()).map_err(|e| e.to_string())
    }

    #[test]
    fn the_line_goes_before_the_file_and_that_before_the_default() {
        let file = "topic = 'orders'\nset = ['a=1', 'b=2']\nfresh = true\nratio = 0.5";
        let options = of(file, &["--ratio", "2", "input.csv"]).expect("options");
        let expected = Options {
            rate: 1,
            topic: "orders".into(),
            set: vec!["a=1".into(), "b=2".into()],
            fresh: true,
            ratio: Some(2.0),
            file: Some("input.csv".into()),
        };
        assert_eq!(options, expected);
        assert_eq!(
            of(file, &["--set", "c=3", "--topic=t"]).expect("options").set,
            ["c=3"],
            "lists are not joined"
        );
        assert_eq!(of("topic = 't'\nrate = 7", &[]).expect("options").rate, 7);
        assert!(!of("topic = 't'\nfresh = false", &[]).expect("options").fresh);
    }

    #[test]
    fn what_a_file_cannot_say_is_refused_by_name() {
        for (file, said) in [
            ("topik = 't'", "topik is no option; there are rate, topic, set, fresh, ratio"),
            ("topic = 't'\nrate = 'many'", "many"),
            ("topic = 't'\nrate = { per = 1 }", "rate is table: write text"),
            ("topic = ", "weir.toml"),
            ("config = 'other.toml'", "config is no option"),
            ("rate = 2", "--topic"),
        ] {
            let error = of(file, &[]).expect_err(file);
            assert!(error.contains(said), "{file}: {error}");
        }
        let missing = ["program", "--config", "/nowhere/weir.toml"].map(OsString::from).to_vec();
        assert!(
            read::<Options>(missing)
                .expect_err("no file")
                .to_string()
                .contains("/nowhere/weir.toml: No such file")
        );
    }

    #[test]
    fn what_follows_two_dashes_names_no_file() {
        let args = ["program", "--topic", "t", "--", "--config"].map(OsString::from).to_vec();
        assert_eq!(read::<Options>(args).expect("options").file.as_deref(), Some("--config"));
    }
}
