"""What Chinese reads digit by digit or names by a number: telephones, cards, rooms, flights, versions, models."""

from __future__ import annotations

import re

from gateway.text.chinese.words import called, cardinal, digits, han, number
from gateway.text.rules import rule

_FREE, _END = r"(?<![\d.A-Za-z])", r"(?![\dA-Za-z]|\.\d)"
_POSTCODE = han("邮编 邮政编码 区号")
_CODE = han(
    "验证码 校验码 动态码 密码 口令 账号 帐号 账户 卡号 尾号 单号 编号 学号 工号 订单 取件码 提取码 兑换码 邀请码 "
    "激活码 识别码 代码 身份证 证号 护照 车牌 手机 电话 号码 热线 客服 门牌 航班 车次 序列号 房号 房间 房间号 会员号 "
    "准考证 机号 座机 股票 传真 短信 拨打 致电 呼叫 专线 转接 分机 QQ PIN ID"
)
_LINK = r"(?:号码|號碼|[号號码碼是为為：:“\"（(#是输輸入]|\s){0,5}"
_COUNTED_BEHIND = r"(?!\s?(?:[行个個次张張条條部台臺位万萬亿億元块塊天人家种種步倍年月日秒页頁%℃米分]|小时|小時))"
_PLACE = han("室 房 房间 教室 宿舍 寝室 会议室 包厢 包间 病房 办公室")
_HELP = "110|119|120|122|114"
_CALLED_BEFORE = han("打 拨 拨打 致电 呼叫 电话 联系 找")
_HELPERS = han("报警 急救 火警 电话 指挥中心 接警 查号 救护 热线 台")
_SERVICES = r"100(?:10|86)|12306|12123|1231[5-9]|12320|12333|12348|123[56]8|955\d\d|12580"
# Hyphens behind these belong to the name; behind other words a hyphen before a number is a minus.
_MODELS = han(
    "歼 轰 运 直 东风 长征 巨浪 红旗 米格 苏 图 神舟 天宫 嫦娥 波音 空客 枭龙 翼龙 鹰击 教 附件 表 图表 方案 型 "
    "款 版 第 附录 天舟 苏霍伊 伊尔 卡 米"
)
_PLATES = "京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼"
_KNOWN = (
    (
        r"985|211",
        han("工程 高校 院校 大学 名校 双一流 毕业") + r"|[、/和及与，]?\s?(?:985|211|双一流)",
    ),
    (r"996|007", han("工作 制 福报 上班 模式 加班 生活")),
    (r"911|315|618|930|1024|520", han("事件 恐怖 袭击 晚会 大促 购物 新政 节 表白 打假")),
)


def _telephone(match: re.Match[str]) -> str:
    """Return digits as they are called out, with a blank where they are parted."""
    return ("加" if match[0].startswith("+") else "") + called(" ".join(re.findall(r"\d+", match[0])))


def _code(match: re.Match[str]) -> str:
    behind = re.sub(r"[Xx]$", " X", match["code"])
    return match["before"] + called(re.sub(r"[ -]+", " ", behind))


def _model(match: re.Match[str]) -> str:
    """GPT-4, C919, F-16, RTX4090, Python3.11."""
    whole, dot, fraction = match["digits"].partition(".")
    spoken = cardinal(whole) if len(whole) < 3 or dot else digits(whole)
    return spoken + (f"点{digits(fraction)}" if dot else "")


def _known(match: re.Match[str]) -> str:
    """985, 211工程, 996工作制."""
    return called(match[0]) if match[0] in ("211", "911", "315") else digits(match[0])


NETWORKS_AND_VERSIONS = (
    rule(rf"{_FREE}\d{{1,3}}(?:\.\d{{1,3}}){{3}}{_END}", lambda m: digits(m[0].replace(".", "点"))),
    rule(r"(?<![\d.])\d{1,4}(?:\.\d{1,4}){2,4}(?!\d|\.\d)", lambda m: "点".join(map(cardinal, m[0].split(".")))),
    rule(
        r"(?<![A-Za-z\d])(?P<v>[vV])\.?(?P<digits>\d{1,4}(?:\.\d{1,6})?)(?![\d.])",
        lambda m: m["v"] + number(m["digits"]),
    ),
)
TELEPHONES_AND_CODES = (
    rule(rf"{_FREE}\+?(?:86[- ]?)?1[3-9]\d[- ]?\d{{4}}[- ]?\d{{4}}{_END}{_COUNTED_BEHIND}", _telephone),
    rule(r"(?<![\w.+-])\+\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,5}(?!\w)", _telephone),
    rule(rf"{_FREE}\d{{4}}([ -])\d{{4}}(?:\1\d{{1,4}}){{1,4}}{_END}", _telephone),
    rule(rf"{_FREE}(?<!-)\d{{1,6}}(?:-\d{{1,7}}){{2,5}}(?!-){_END}", _telephone),
    rule(rf"{_FREE}[(（]0\d{{2,3}}[)）][- ]?\d{{3,4}}[- ]?\d{{4}}(?:-\d{{1,6}})?{_END}", _telephone),
    rule(rf"{_FREE}0\d{{2,3}}[- ]\d{{3,4}}[- ]?\d{{4}}(?:-\d{{1,6}})?{_END}", _telephone),
    rule(rf"{_FREE}0\d{{9,11}}{_END}", _telephone),
    rule(rf"{_FREE}[48]00[- ]?\d{{3,4}}[- ]\d{{3,4}}{_END}", _telephone),
    rule(rf"{_FREE}\d{{17}}[\dXx]{_END}", lambda m: called(m[0])),
    rule(rf"(?P<before>(?:{_POSTCODE}){_LINK})(?P<code>\d{{3,6}}){_END}", lambda m: m["before"] + digits(m["code"])),
    rule(
        rf"(?P<before>(?:{_CODE}){_LINK})(?P<code>\d[\d -]{{1,30}}[\dXx]){_END}(?<!-\d){_COUNTED_BEHIND}",
        _code,
    ),
    rule(
        rf"(?P<before>(?:{_CODE}){_LINK}[A-Za-z]{{1,3}})(?P<code>\d{{3,20}}){_END}",
        _code,
    ),
    rule(rf"(?<=[{_PLATES}][A-Z])·?[A-Z0-9]{{5,6}}(?![A-Za-z0-9])", lambda m: called(m[0])),
    rule(rf"(?:(?<=^)(?:{_HELP})(?=[。.!！?？]?$)|{_FREE}(?:{_HELP})(?={_HELPERS}))", lambda m: called(m[0])),
    rule(rf"(?P<before>(?:{_CALLED_BEFORE})了?)(?P<code>{_HELP}|\d{{5}}){_END}{_COUNTED_BEHIND}", _code),
    rule(rf"{_FREE}(?:{_SERVICES}){_END}{_COUNTED_BEHIND}(?!\s?[名座棵朵台吨度公斤克毫])", lambda m: called(m[0])),
    rule(r"(?<=[“\"])\d{4,20}(?=[”\"]号)", lambda m: digits(m[0])),
    rule(r"(?:(?<=[栋棟幢楼樓])|(?<=[单單]元))\d{3,4}(?![\d.年月米个個人层層户戶])", lambda m: called(m[0])),
    rule(rf"{_FREE}\d{{3,4}}(?=号?(?:{_PLACE}))", lambda m: called(m[0])),
    *(rule(rf"{_FREE}(?:{numbers})(?={behind})", _known) for numbers, behind in _KNOWN),
    rule(rf"(?<=九八五[、/和及与，])211{_END}", _known),
)
MODELS = (
    rule(rf"{_FREE}\d[vV]\d{_END}", lambda m: digits(m[0])),
    rule(r"(?<![A-Za-z0-9])([ABCFGOP])2([ABCFGOP])(?![A-Za-z0-9])", lambda m: f"{m[1]} to {m[2]}"),
    rule(r"(?<=[A-Za-z])(?P<name>\d{1,4})-(?P<rest>\d{3,6})", lambda m: f"{m['name']} {digits(m['rest'])}"),
    rule(r"(?<=[A-Za-z])(?P<name>\d{1,4}(?:\.\d{1,2})?)-(?=\d)", lambda m: f"{m['name']} "),
    rule(r"(?P<name>(?<![\dA-Za-z.])[A-Za-z]{1,20})-(?=\d)", lambda m: m["name"]),
    rule(rf"(?P<name>{_MODELS})-(?=\d)", lambda m: m["name"]),
    rule(r"(?<=波音|空客)\d{3}(?!\d)", lambda m: digits(m[0])),
    rule(
        r"(?<![A-Za-z])(?P<letters>[A-Z]{2}|[GDKCTZSY](?=\d{1,4}次))(?P<digits>\d{3,4})(?![\dA-Za-z.])",
        lambda m: m["letters"] + called(m["digits"]),
    ),
    rule(r"(?<=[A-Z][A-Z] )\d{3,4}(?![\d.,A-Za-z]|\s?[元万亿个人年月])", lambda m: digits(m[0])),
    rule(r"(?<=[A-Za-z])(?P<digits>\d{1,12}(?:\.\d{1,6})?)(?![\d.]*\d)", _model),
)
