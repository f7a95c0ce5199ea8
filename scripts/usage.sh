# SPDX-License-Identifier: Apache-2.0
# For the scripts in shell, which read it first: with -h or --help as the first word it prints the comment at the script's
# top and ends the script.
# shellcheck shell=sh
case ${1-} in -h | --help) sed -n '1,2d; /^#/!q; s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

# only_options OPTIONS WORD...: ends the script at a WORD that is an option and none of these.
only_options() {
  known=$1
  shift
  for word; do
    case $word in
      -*) case " $known " in
        *" ${word%%=*} "*) ;;
        *) echo "${0##*/}: unknown option $word; --help says more" >&2; exit 2 ;;
      esac ;;
    esac
  done
}
